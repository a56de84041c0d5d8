"""Images and labels: drawn, found or fetched; verified, indexed, split, perturbed."""


rule phantom:
    output:
        directory(f"{STORE}/phantoms/{{dataset}}"),
    log:
        job=f"{STORE}/logs/phantoms/{{dataset}}.log",
        provenance=f"{STORE}/provenance/phantoms/{{dataset}}.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        drawing=lambda wildcards: PLAN.drawing(wildcards.dataset),
        code=code("draw_phantom.py"),
    script:
        "../scripts/draw_phantom.py"


# First of all: missing or damaged data are to be known before weights are fetched. No digest of
# code here: how files are fetched changes none of them, and everything depends on this rule.
rule acquire:
    input:
        lambda wildcards: PLAN.given_data(wildcards.dataset),
    output:
        f"{STORE}/data/{{dataset}}/acquired.json",
    log:
        job=f"{STORE}/logs/data/{{dataset}}/acquire.log",
        provenance=f"{STORE}/provenance/data/{{dataset}}/acquire.json",
    priority: 100
    conda:
        "../../envs/crsbench.yaml"
    params:
        root=lambda wildcards: PLAN.root(wildcards.dataset),
        adapter=lambda wildcards: PLAN.adapter_module(wildcards.dataset),
    script:
        "../scripts/acquire_dataset.py"


rule verify_data:
    input:
        acquired=rules.acquire.output,
        accepted=lambda wildcards: PLAN.accepted_losses(wildcards.dataset),
    output:
        images=f"{STORE}/data/{{dataset}}/images.csv",
        verdict=f"{STORE}/data/{{dataset}}/verdict.json",
    log:
        job=f"{STORE}/logs/data/{{dataset}}/verify.log",
        provenance=f"{STORE}/provenance/data/{{dataset}}/verify.json",
    priority: 100
    conda:
        "../../envs/crsbench.yaml"
    threads: SETTINGS.extraction.threads
    params:
        definition=lambda wildcards: PLAN.definition_json(wildcards.dataset),
        verify=SETTINGS.verify,
        code=lambda wildcards: code("verify_dataset.py", PLAN.adapter_module(wildcards.dataset)),
    script:
        "../scripts/verify_dataset.py"


rule index:
    input:
        images=rules.verify_data.output.images,
        accepted=lambda wildcards: PLAN.accepted_losses(wildcards.dataset),
    output:
        index=f"{STORE}/data/{{dataset}}/index.parquet",
        exclusions=f"{STORE}/data/{{dataset}}/exclusions.csv",
        duplicates=f"{STORE}/data/{{dataset}}/duplicates.csv",
    log:
        job=f"{STORE}/logs/data/{{dataset}}/index.log",
        provenance=f"{STORE}/provenance/data/{{dataset}}/index.json",
    priority: 100
    conda:
        "../../envs/crsbench.yaml"
    params:
        definition=lambda wildcards: PLAN.definition_json(wildcards.dataset),
        conflicting_labels=SETTINGS.conflicting_labels,
        near_duplicates=SETTINGS.near_duplicates,
        code=lambda wildcards: code("index_dataset.py", PLAN.adapter_module(wildcards.dataset)),
    script:
        "../scripts/index_dataset.py"


rule split:
    input:
        index=rules.index.output.index,
    output:
        split=f"{STORE}/data/{{dataset}}/split.parquet",
    log:
        job=f"{STORE}/logs/data/{{dataset}}/split.log",
        provenance=f"{STORE}/provenance/data/{{dataset}}/split.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        sides=SETTINGS.split.model_dump(),
        code=code("split_dataset.py"),
    script:
        "../scripts/split_dataset.py"


# Apart from the split, so that another seed or fraction re-extracts nothing.
rule subsample:
    input:
        index=rules.index.output.index,
        split=rules.split.output.split,
    output:
        subsamples=f"{STORE}/data/{{dataset}}/subsamples.parquet",
    log:
        job=f"{STORE}/logs/data/{{dataset}}/subsamples.log",
        provenance=f"{STORE}/provenance/data/{{dataset}}/subsamples.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        uncertain=SETTINGS.uncertain,
        label_fractions=list(SETTINGS.label_fractions),
        seeds=list(SETTINGS.seeds),
        code=code("draw_subsamples.py"),
    script:
        "../scripts/draw_subsamples.py"


# Early, so that what makes source and target hard to compare is known before anything is extracted.
rule prevalence:
    input:
        index=rules.index.output.index,
        split=rules.split.output.split,
        shift_indexes=lambda wildcards: [
            f"{STORE}/data/{target}/index.parquet" for target in PLAN.shift[wildcards.dataset]
        ],
    output:
        prevalence=f"{STORE}/data/{{dataset}}/prevalence.csv",
    log:
        job=f"{STORE}/logs/data/{{dataset}}/prevalence.log",
        provenance=f"{STORE}/provenance/data/{{dataset}}/prevalence.json",
    priority: 90
    conda:
        "../../envs/crsbench.yaml"
    params:
        shift=lambda wildcards: PLAN.shift[wildcards.dataset],
        uncertain=SETTINGS.uncertain,
        code=code("count_prevalence.py"),
    script:
        "../scripts/count_prevalence.py"


rule perturb:
    input:
        index=rules.index.output.index,
        split=rules.split.output.split,
    output:
        f"{STORE}/data/{{dataset}}/perturbations.parquet",
    log:
        job=f"{STORE}/logs/data/{{dataset}}/perturb.log",
        provenance=f"{STORE}/provenance/data/{{dataset}}/perturb.json",
    conda:
        "../../envs/crsbench.yaml"
    threads: SETTINGS.extraction.threads
    params:
        root=lambda wildcards: PLAN.root(wildcards.dataset),
        perturbations=list(SETTINGS.perturbations),
        severities=SETTINGS.severities.model_dump(),
        max_side_px=SETTINGS.max_side_px,
        code=code("perturb_dataset.py"),
    script:
        "../scripts/perturb_dataset.py"
