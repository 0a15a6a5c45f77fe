"""The live view: reads run directories, of running, finished and copied runs alike, and never owns the training."""
