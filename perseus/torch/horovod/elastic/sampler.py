"""A sampler that can continue in the middle of an epoch, also with another number of ranks."""

from __future__ import annotations

import torch.utils.data

from perseus.common import elastic_sampler

__all__ = ["ElasticSampler"]


class ElasticSampler(elastic_sampler.ElasticSampler, torch.utils.data.Sampler[int]):
    __doc__ = elastic_sampler.ElasticSampler.__doc__
