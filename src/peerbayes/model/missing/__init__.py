"""Missing values in families whose columns depend on each other.

The log joint is linear in φ, so for each class c, with W = θ(S) and x = (x_obs, x_mis),

    log p(x_obs, c) = log ∫ exp⟨W_c, φ(x)⟩ dx_mis        Φ̃_c = E[φ(x) | x_obs, c]

(sums over categories). Learning uses Φ̃ in place of φ: maximum likelihood by expectation-maximisation, and RC by
R_c = Σ_n (y_nc − p(c | x_obs)) Φ̃_c. Σ_c R_c is then not zero: Φ̃ differs from class to class.

Observed features go through matrix products; the terms of the missing values come from loops over rows and classes.
"""

from peerbayes.model.missing.expected import Completion, complete, contributions
from peerbayes.model.missing.patterns import alone, apart

__all__ = ["Completion", "alone", "apart", "complete", "contributions"]
