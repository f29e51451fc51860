"""The mathematics of one model: features, statistics, weights, residuals; families, missing values, kernels."""
