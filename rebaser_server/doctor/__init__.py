"""Whether a deployment is well, what is wrong with it, and mending what is safe."""
