"""The paper's own numbers, recomputed from its published tables: no data needed."""


rule paper_check:
    input:
        axes="resources/paper/fig2_axes.csv",
        table="resources/paper/table2.csv",
    output:
        table="results/paper_check.csv",
        report="results/paper_check.md",
    params:
        code=code("check_paper.py"),
    log:
        job="results/logs/paper_check.log",
        provenance="results/provenance/paper_check.json",
    conda:
        "../../envs/crsbench.yaml"
    script:
        "../scripts/check_paper.py"
