"""fedsim: federated learning under fat-tailed noise, simulated; runs the experiments of the FAT-Clipping paper."""
