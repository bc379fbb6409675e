"""torchrun's plug-in: `--rdzv-backend=everstep` lets torchrun's agents meet at our coordinator. Needs torch."""
