"""State on storage: tensors as safetensors, the rest as JSON, a manifest that appears last.

`image`, `manifest`, `storage`, `write` and `retention` run without torch: the agent and the command line use them."""
