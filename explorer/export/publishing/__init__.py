"""Publishing datasets: the procedure, and jobs that do it in the background."""
