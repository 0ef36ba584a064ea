"""A fitted estimator as scikit-learn's own classes, for those who have no fedpca."""

from __future__ import annotations

from typing import Any

import numpy as np

FITTED = (
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "mean_",
    "noise_variance_",
    "n_components_",
    "n_samples_",
    "n_features_in_",
    "feature_names_in_",
)


def scikit_learn_twin(model: Any) -> Any:
    """A PCA that gives the same scores, behind a StandardScaler where the model scales."""
    # not needed by a fit, and slow to import
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pca = PCA(model.n_components_, whiten=model.whiten)
    for name in FITTED:
        if hasattr(model, name):
            setattr(pca, name, getattr(model, name))
    if hasattr(model, "n_samples_seen_"):
        pca.n_samples_ = model.n_samples_seen_
    if not getattr(model, "scale", False):
        return pca
    pca.mean_ = np.zeros(model.n_features_in_)
    scaler = StandardScaler(with_mean=model.center)
    scaler.mean_, scaler.scale_, scaler.var_ = model.mean_, model.scale_, model.scale_**2
    scaler.n_samples_seen_, scaler.n_features_in_ = model.n_samples_, model.n_features_in_
    if hasattr(model, "feature_names_in_"):
        scaler.feature_names_in_ = model.feature_names_in_
        del pca.feature_names_in_
    return make_pipeline(scaler, pca)
