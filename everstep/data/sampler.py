from torch.utils.data import DistributedSampler


class ElasticDistributedSampler(DistributedSampler): ...
