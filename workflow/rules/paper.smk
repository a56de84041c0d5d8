"""The paper's own numbers, recomputed from its published tables: no data needed."""


rule paper_check:
    input:
        [
            f"resources/paper/{name}.csv"
            for name in (
                "fig2_axes",
                "fig4_specialization",
                "fig6_calibration",
                "fig7_ece_increase",
                "table2",
            )
        ],
    output:
        table="results/paper_check.csv",
        report="results/paper_check.md",
    log:
        job="results/logs/paper_check.log",
        provenance="results/provenance/paper_check.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        code=code("check_paper.py"),
    script:
        "../scripts/check_paper.py"
