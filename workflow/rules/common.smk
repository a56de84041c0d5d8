"""The plan of this run, and the few names that the rules share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from crsbench import plan as planning
from crsbench.errors import CrsBenchError
from crsbench.provenance import code_digest

SCRIPTS = Path(workflow.basedir) / "workflow" / "scripts"

try:
    PLAN = planning.make_plan(config, files=["config/config.yaml", *workflow.overwrite_configfiles])
except CrsBenchError as error:
    raise WorkflowError(str(error))

STORE = PLAN.settings.store
RUN = PLAN.settings.run_folder
SETTINGS = PLAN.settings


def code(script, *modules):
    """Digest of what a script computes: a param, so that a change of it re-runs the rule."""
    return code_digest(SCRIPTS / script, modules)


wildcard_constraints:
    encoder="|".join(PLAN.encoders),
    dataset="|".join(PLAN.datasets),
    probe="|".join(SETTINGS.probes),
