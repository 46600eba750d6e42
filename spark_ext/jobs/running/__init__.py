"""What all jobs have: which cluster and as whom, the session, errors, and how a command line ends."""
