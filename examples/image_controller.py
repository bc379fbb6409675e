"""ElasticDL's way: a dataset that asks which record is next, a function for one batch that is run again if a peer dies.

    python examples/image_controller.py                               # alone
    everstep run --nproc-per-node 3 examples/image_controller.py      # kill workers as you like

Of ElasticDL's own script only the imports are changed, and images come from an array instead of from files. Workers
take records as they can: quick ones take more, and each record is in the model exactly once per epoch, whoever dies."""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.utils.data import DataLoader, Dataset

from everstep import PyTorchAllReduceController, RecordIndexService

DATA = Path(__file__).parent / "data" / "fashion-mnist-8k.npz"


class ElasticDataset(Dataset):
    def __init__(self, images, data_shard_service=None):
        """images: a list with tuples like (image, label_index)."""
        self.data_shard_service = data_shard_service
        self._images = images

    def __len__(self):
        if self.data_shard_service:
            # Set the maxsize because the size of dataset is not fixed
            # when using dynamic sharding
            return sys.maxsize
        return len(self._images)

    def __getitem__(self, index):
        if self.data_shard_service:
            index = self.data_shard_service.fetch_record_index()
        return self.read_image(index)

    def read_image(self, index):
        image, label = self._images[index]
        image = np.array(image / 255.0, np.float32)
        image = image.reshape(1, 28, 28)
        return image, label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.fc1 = nn.Linear(32 * 5 * 5, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def load(part):
    """The "train" or "test" images with their labels."""
    with np.load(DATA) as arrays:
        return list(zip(arrays[f"{part}_images"], arrays[f"{part}_labels"].astype(np.int64), strict=True))


def train_one_batch(model, optimizer, data, target):
    optimizer.zero_grad()
    output = model(data)
    loss = F.nll_loss(output, target)
    loss.backward()
    optimizer.step()
    return loss


def validate(model, images):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in DataLoader(ElasticDataset(images), batch_size=250):
            correct += (model(data).argmax(dim=1) == target).sum().item()
    return correct / len(images)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=50, help="of a worker; 50 leaves no tail of the 7,000 images")
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument("--num_workers", type=int, default=0, help="processes that read images, for each worker")
    args = parser.parse_args()

    torch.manual_seed(0)
    train_images = load("train")
    data_shard_service = RecordIndexService(
        batch_size=args.batch_size,
        dataset_size=len(train_images),
        num_epochs=args.num_epochs,
        shuffle=True,
        dataset_name="fashion_mnist_training_data",
    )
    train_dataset = ElasticDataset(train_images, data_shard_service)
    train_loader = DataLoader(train_dataset, batch_size=args.batch_size, num_workers=args.num_workers)

    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    allreduce_controller = PyTorchAllReduceController(data_shard_service)
    allreduce_controller.set_broadcast_model(model)
    allreduce_controller.set_broadcast_optimizer(optimizer)
    # Use the elastic function to wrap the training function with a batch.
    elastic_train_one_batch = allreduce_controller.elastic_run(train_one_batch)

    with allreduce_controller.scope():
        for batch_idx, (data, target) in enumerate(train_loader):
            loss = elastic_train_one_batch(model, optimizer, data, target)
            if batch_idx % 20 == 0 and allreduce_controller.rank == 0:
                epoch, step = allreduce_controller.current_epoch, allreduce_controller.num_steps
                print(f"epoch {epoch}  step {step:3}  loss {loss.item():.4f}", flush=True)

    if allreduce_controller.rank == 0:
        print(f"test accuracy {validate(model, load('test')):.1%}", flush=True)


if __name__ == "__main__":
    main()
