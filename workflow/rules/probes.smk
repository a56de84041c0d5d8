"""Probes and their evaluation: one job per encoder and dataset each."""


rule probe:
    input:
        index=rules.index.output.index,
        split=rules.split.output.split,
        subsamples=rules.subsample.output.subsamples,
        clean=rules.features_clean.output[0],
        perturbed=rules.features_perturbed.output[0],
        shift_features=lambda wildcards: [
            f"{STORE}/features/{wildcards.encoder}/{target}/clean.parquet"
            for target in PLAN.shift[wildcards.dataset]
        ],
        shift_indexes=lambda wildcards: [
            f"{STORE}/data/{target}/index.parquet" for target in PLAN.shift[wildcards.dataset]
        ],
    output:
        predictions=f"{STORE}/predictions/{{probe}}/{{encoder}}/{{dataset}}.parquet",
        fits=f"{STORE}/predictions/{{probe}}/{{encoder}}/{{dataset}}.fits.parquet",
    log:
        job=f"{STORE}/logs/predictions/{{probe}}/{{encoder}}/{{dataset}}.log",
        provenance=f"{STORE}/provenance/predictions/{{probe}}/{{encoder}}/{{dataset}}.json",
    conda:
        "../../envs/crsbench.yaml"
    # Cells are many, and one thread each is the best use of cores. A single large cell is somewhat
    # faster with --set-threads probe=2: fits then run side by side. The records do not change.
    threads: 1
    resources:
        gpu=lambda wildcards: SETTINGS.gpus_of_probe(wildcards.probe),
    params:
        shift=lambda wildcards: PLAN.shift[wildcards.dataset],
        uncertain=SETTINGS.uncertain,
        conditions=PLAN.key_settings["conditions"],
        label_fractions=list(SETTINGS.label_fractions),
        seeds=list(SETTINGS.seeds),
        settings=lambda wildcards: SETTINGS.probe_settings(wildcards.probe),
        code=lambda wildcards: code("fit_probe.py", f"probes.{wildcards.probe}"),
    script:
        "../scripts/fit_probe.py"


rule evaluate:
    input:
        predictions=rules.probe.output.predictions,
        fits=rules.probe.output.fits,
        index=rules.index.output.index,
        split=rules.split.output.split,
        shift_indexes=lambda wildcards: [
            f"{STORE}/data/{target}/index.parquet" for target in PLAN.shift[wildcards.dataset]
        ],
    output:
        f"{STORE}/records/{{probe}}/{{encoder}}/{{dataset}}.parquet",
    log:
        job=f"{STORE}/logs/records/{{probe}}/{{encoder}}/{{dataset}}.log",
        provenance=f"{STORE}/provenance/records/{{probe}}/{{encoder}}/{{dataset}}.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        shift=lambda wildcards: PLAN.shift[wildcards.dataset],
        uncertain=SETTINGS.uncertain,
        metrics=lambda wildcards: SETTINGS.scoring_settings(wildcards.probe),
        record_keys=lambda wildcards: PLAN.keys_of_cell(
            wildcards.encoder, wildcards.dataset, wildcards.probe
        ),
        settings=lambda wildcards: PLAN.protocol_json(wildcards.probe),
        code=code("evaluate_probe.py"),
    script:
        "../scripts/evaluate_probe.py"


rule aggregate:
    input:
        records=[
            f"{STORE}/records/{probe}/{cell.encoder}/{cell.dataset}.parquet"
            for probe in SETTINGS.probes
            for cell in PLAN.cells
        ],
    output:
        run_records=f"{RUN}/run_records.parquet",
        metric_rows=f"{RUN}/metric_rows.parquet",
        axes=f"{RUN}/axes.csv",
    log:
        job=f"{RUN}/logs/aggregate.log",
        provenance=f"{RUN}/provenance/aggregate.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        record_keys=PLAN.key_settings,
        probe=SETTINGS.probes[0],  # the primary probe: its axes are scored
        robustness_fractions=list(SETTINGS.robustness_fractions),
        code=code("aggregate_records.py"),
    script:
        "../scripts/aggregate_records.py"
