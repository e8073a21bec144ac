"""
The claims of the literature this library follows, each as a study with a verdict.

One file per claim: the claim, where it is made, what is varied and measured, the rule of the verdict, and what the
source did that is not done here. `study.py` says what a study is, `trials.py` trains or computes its trials once and
for all, `findings.py` holds the rules, `run.py` puts them together, `picture.py` and `gallery.py` show the outcome.

    pyro-bnn study thesis-estimators --scale smoke
"""

from pyro_bnn.studies.run import find_study, run_study, study_names
from pyro_bnn.studies.study import Scale, Study, Trial

__all__ = ["Scale", "Study", "Trial", "find_study", "run_study", "study_names"]
