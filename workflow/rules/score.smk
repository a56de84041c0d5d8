"""The table of scores."""


rule score:
    input:
        axes=rules.aggregate.output.axes,
        run_records=rules.aggregate.output.run_records,
        exclusions=[f"{STORE}/data/{dataset}/exclusions.csv" for dataset in PLAN.datasets],
        noted=[
            f"{STORE}/data/{dataset}/{table}.parquet"
            for dataset in PLAN.shift
            for table in ("split", "subsamples")
        ],
        prevalence=[f"{STORE}/data/{dataset}/prevalence.csv" for dataset in PLAN.shift],
        reference=SETTINGS.reference_files,
    output:
        table=f"{RUN}/crs_table.csv",
        notes=f"{RUN}/crs_notes.md",
        scored=update(f"{RUN}/scored_axes.csv"),
    log:
        job=f"{RUN}/logs/score.log",
        provenance=f"{RUN}/provenance/score.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        encoders=PLAN.encoder_names,
        datasets=list(PLAN.datasets),
        excluded=PLAN.excluded_cells,
        score=SETTINGS.score.model_dump(),
        code=code("score_encoders.py"),
    script:
        "../scripts/score_encoders.py"
