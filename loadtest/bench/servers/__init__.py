"""Those who are asked: nodes, and the programs that they are held against."""
