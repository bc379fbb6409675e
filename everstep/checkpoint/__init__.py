"""State on storage: tensors as safetensors, the rest as JSON, a manifest that appears last.

`catalog`, `export`, `image`, `manifest`, `policy`, `write` and `saver` run without torch: the agent and the command
line use them."""
