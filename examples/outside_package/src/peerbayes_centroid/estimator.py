"""The scikit-learn estimator of the family; a module of its own, because peers do not need scikit-learn."""

from peerbayes.estimators.generative import GenerativeClassifier
from peerbayes_centroid.family import Centroid


class CentroidClassifier(GenerativeClassifier):
    """Nearest class mean, with priors and discrete columns. Parameters are those of `peerbayes.MixedNB`."""

    family_type = Centroid
