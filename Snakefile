"""CRS-Bench: from images to the table of Clinical Reliability Scores (docs/architecture.md)."""

from snakemake.utils import min_version

min_version("9.27")


resource_scopes:
    gpu="local",  # GPUs of this machine; a cluster counts its own


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/probes.smk"
include: "workflow/rules/score.smk"
include: "workflow/rules/validity.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/paper.smk"


rule all:
    default_target: True
    input:
        rules.score.output,
        [ANALYSES[name] for name in SETTINGS.analyses],
        rules.figures.output,
        rules.paper_check.output,


onerror:
    failures = collect_failures(workflow.scheduler.failed, log)
    lines = failure_lines(failures, since=STARTED)
    sys.stderr.writelines(f"{line}\n" for line in lines)
