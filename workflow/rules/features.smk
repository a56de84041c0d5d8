"""Weights and features: two extraction jobs per encoder and dataset."""


rule weights:
    output:
        f"{STORE}/weights/{{encoder}}.safetensors",
    log:
        job=f"{STORE}/logs/weights/{{encoder}}.log",
        provenance=f"{STORE}/provenance/weights/{{encoder}}.json",
    conda:
        "../../envs/crsbench.yaml"
    params:
        card=lambda wildcards: PLAN.card_json(wildcards.encoder),
        code=lambda wildcards: code("convert_weights.py", PLAN.loader_module(wildcards.encoder)),
    script:
        "../scripts/convert_weights.py"


rule features_clean:
    input:
        weights=rules.weights.output[0],
        index=rules.index.output.index,
    output:
        clean=f"{STORE}/features/{{encoder}}/{{dataset}}/clean.parquet",
        depth=f"{STORE}/features/{{encoder}}/{{dataset}}/depth.parquet",
    log:
        job=f"{STORE}/logs/features/{{encoder}}/{{dataset}}/clean.log",
        provenance=f"{STORE}/provenance/features/{{encoder}}/{{dataset}}/clean.json",
    conda:
        "../../envs/crsbench.yaml"
    threads: SETTINGS.extraction.threads
    resources:
        gpu=int(SETTINGS.extraction.device == "cuda"),
    params:
        card=lambda wildcards: PLAN.card_json(wildcards.encoder),
        root=lambda wildcards: PLAN.root(wildcards.dataset),
        max_side_px=SETTINGS.max_side_px,
        depth_indices=lambda wildcards: PLAN.depth_indices(wildcards.encoder),
        code=lambda wildcards: code("extract_clean.py", PLAN.loader_module(wildcards.encoder)),
    script:
        "../scripts/extract_clean.py"


rule features_perturbed:
    input:
        weights=rules.weights.output[0],
        index=rules.index.output.index,
        perturbations=rules.perturb.output[0],
    output:
        f"{STORE}/features/{{encoder}}/{{dataset}}/perturbed.parquet",
    log:
        job=f"{STORE}/logs/features/{{encoder}}/{{dataset}}/perturbed.log",
        provenance=f"{STORE}/provenance/features/{{encoder}}/{{dataset}}/perturbed.json",
    conda:
        "../../envs/crsbench.yaml"
    threads: SETTINGS.extraction.threads
    resources:
        gpu=int(SETTINGS.extraction.device == "cuda"),
    params:
        card=lambda wildcards: PLAN.card_json(wildcards.encoder),
        root=lambda wildcards: PLAN.root(wildcards.dataset),
        severities=SETTINGS.severities.model_dump(),
        max_side_px=SETTINGS.max_side_px,
        code=lambda wildcards: code("extract_perturbed.py", PLAN.loader_module(wildcards.encoder)),
    script:
        "../scripts/extract_perturbed.py"
