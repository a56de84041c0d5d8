"""Figures: pictures of tables, computing nothing."""

FORMATS = ("pdf", "svg", "png")


rule figures:
    input:
        table=rules.score.output.table,
    output:
        profiles=[f"{RUN}/figures/profiles.{suffix}" for suffix in FORMATS],
        ranks=[f"{RUN}/figures/ranks.{suffix}" for suffix in FORMATS],
    log:
        job=f"{RUN}/logs/figures.log",
        provenance=f"{RUN}/provenance/figures.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        synthetic=PLAN.synthetic,
        code=code("draw_figures.py"),
    script:
        "../scripts/draw_figures.py"
