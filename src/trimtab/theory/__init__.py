"""What the papers predict, as functions (numpy and scipy).

- `trimtab.theory.mean_field`: the largest eigenvalue of the Fisher matrix and the largest stable learning rate, of
  layers as described; `trimtab.theory.from_model`: of a model as it is.
- `trimtab.theory.implicit_decay`: the weight decay that the noise of batch statistics is equivalent to.
- `trimtab.theory.teacher_student`: learning dynamics under batch and weight normalization.
- `trimtab.theory.generalization`: generalization curves of linear regression.
- `trimtab.theory.simulation`: simulations of the last three, at finite size.
- `trimtab.theory.length_direction`: descent split into length and direction, on least squares.
- `trimtab.theory.bounds`: the theorems on conditioning and smoothness, both sides of each.
"""
