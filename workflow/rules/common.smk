"""The plan of this run, and the few names that the rules share."""

import os
import sys
import time
from pathlib import Path

# Jobs inherit it. Polars would take all cores in each, and only asks before it is loaded.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from crsbench import plan as planning
from crsbench.errors import CrsBenchError
from crsbench.failures import collect_failures, failure_lines
from crsbench.provenance import SCRIPTS, accepted_digests, code_digest

STARTED = time.time()

try:
    PLAN = planning.make_plan(config, files=["config/config.yaml", *workflow.overwrite_configfiles])
    ACCEPTED = accepted_digests(PLAN.settings.store)
except CrsBenchError as error:
    raise WorkflowError(str(error))

STORE = PLAN.settings.store
RUN = PLAN.settings.run_folder
SETTINGS = PLAN.settings


def code(script, *modules):
    """What a script computes: a param, so that a change of it re-runs the rule.

    The digest of code that `crsbench accept` was called for is that of the code it stands for.
    """
    digest = code_digest(SCRIPTS / script, modules)
    return {
        "script": script,
        "modules": list(modules),
        "digest": ACCEPTED.get(digest, digest),
    }


wildcard_constraints:
    encoder="|".join(PLAN.encoders),
    dataset="|".join(PLAN.datasets),
    probe="|".join(SETTINGS.probes),
