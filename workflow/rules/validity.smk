"""What the scores are worth: intervals under resampling, and the validity analyses."""

BOOTSTRAP_TABLES = ("intervals", "axes", "ranks", "differences", "tiers")
VALIDITY_TABLES = (
    "panels",
    "panel_summary",
    "insertions",
    "insertion_summary",
    "weights",
    "weight_summary",
    "informativeness",
    "decisions",
    "reversed_pairs",
    "rank_moves",
    "estimators",
    "complete_members",
    "variant_scores",
    "leave_one_dataset_out",
    "shift_prediction",
    "probe_agreement",
)
PRIMARY_PROBE = SETTINGS.probes[0]
CASE_REPLICATES = f"{STORE}/case_replicates/{{probe}}/{{encoder}}/{{dataset}}"
CELLS = {
    "probe": [PRIMARY_PROBE] * len(PLAN.cells),
    "encoder": [cell.encoder for cell in PLAN.cells],
    "dataset": [cell.dataset for cell in PLAN.cells],
}


rule bootstrap:
    input:
        run_records=rules.aggregate.output.run_records,
    output:
        **{name: f"{RUN}/bootstrap/{name}.csv" for name in BOOTSTRAP_TABLES},
    log:
        job=f"{RUN}/logs/bootstrap.log",
        provenance=f"{RUN}/provenance/bootstrap.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        probe=PRIMARY_PROBE,
        encoders=list(PLAN.encoders),
        datasets=list(PLAN.shift),
        draws=list(SETTINGS.resampling.seed_draws),
        n_replicates=SETTINGS.resampling.seed_replicates,
        seed=SETTINGS.resampling.seed,
        weights=SETTINGS.weights,
        code=code("bootstrap_seeds.py"),
    script:
        "../scripts/bootstrap_seeds.py"


rule case_replicates:
    input:
        predictions=rules.probe.output.predictions,
        fits=rules.probe.output.fits,
        index=rules.index.output.index,
        split=rules.split.output.split,
        shift_indexes=lambda wildcards: [
            f"{STORE}/data/{target}/index.parquet" for target in PLAN.shift[wildcards.dataset]
        ],
    output:
        replicates=f"{CASE_REPLICATES}.parquet",
        absences=f"{CASE_REPLICATES}.absences.csv",
    log:
        job=f"{STORE}/logs/case_replicates/{{probe}}/{{encoder}}/{{dataset}}.log",
        provenance=f"{STORE}/provenance/case_replicates/{{probe}}/{{encoder}}/{{dataset}}.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        shift=lambda wildcards: PLAN.shift[wildcards.dataset],
        uncertain=SETTINGS.uncertain,
        metrics=lambda wildcards: SETTINGS.scoring_settings(wildcards.probe),
        conditions=PLAN.key_settings["conditions"],
        label_fractions=list(SETTINGS.label_fractions),
        seeds=list(SETTINGS.seeds),
        n_replicates=SETTINGS.resampling.case_replicates,
        seed=SETTINGS.resampling.seed,
        code=code("replicate_cell.py"),
    script:
        "../scripts/replicate_cell.py"


rule case_bootstrap:
    input:
        axes=rules.aggregate.output.axes,
        replicates=expand(rules.case_replicates.output.replicates, zip, **CELLS),
        absences=expand(rules.case_replicates.output.absences, zip, **CELLS),
    output:
        **{name: f"{RUN}/bootstrap/case_{name}.csv" for name in BOOTSTRAP_TABLES},
        absences=f"{RUN}/bootstrap/case_absences.csv",
    log:
        job=f"{RUN}/logs/case_bootstrap.log",
        provenance=f"{RUN}/provenance/case_bootstrap.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        weights=SETTINGS.weights,
        code=code("bootstrap_cases.py"),
    script:
        "../scripts/bootstrap_cases.py"


rule validity:
    input:
        axes=rules.aggregate.output.axes,
        metric_rows=rules.aggregate.output.metric_rows,
    output:
        **{name: f"{RUN}/validity/{name}.csv" for name in VALIDITY_TABLES},
    log:
        job=f"{RUN}/logs/validity.log",
        provenance=f"{RUN}/provenance/validity.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        probe=PRIMARY_PROBE,
        ordinal_datasets=[name for name in PLAN.shift if PLAN.datasets[name].task == "ordinal"],
        draws=SETTINGS.validity.model_dump(),
        seed=SETTINGS.resampling.seed,
        weights=SETTINGS.weights,
        code=code("assess_validity.py"),
    script:
        "../scripts/assess_validity.py"


#: What each name in the setting `analyses` makes.
ANALYSES = {
    "bootstrap": rules.bootstrap.output,
    "case_bootstrap": rules.case_bootstrap.output,
    "validity": rules.validity.output,
}
