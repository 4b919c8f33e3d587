"""The local step as a list of tensor operations, without the Python around them.

For small models most of a step's time goes into vmap, modules and autograd's bookkeeping, not into arithmetic. This
package runs the step once under a tracer and keeps what it did to tensors. From ``(params, StepInput)``:

1. ``record``: ``make_fx`` lists the operations from the tensors of the input to gradients, losses and logged values.
2. ``simplify``: drops operations that return their input, computes constants once, and shares what is computed twice.
   Each of these keeps every bit; the reasons stand beside the code.
3. ``descend``, only where nothing comes between the loss's gradient and the step of plain SGD: gradients are added to
   the parameters where they are computed. Equal to rounding, not to the bit.
4. ``replay`` makes a Python function of the list; ``compiled`` has ``torch.compile`` make kernels of it instead.

``TracedStep`` and ``CompiledStep`` are step functions like the one they record.

What a recording is good for: tensors of the same shapes and types, in the same nesting. It reads the values of its
arguments, and those of the module's buffers and frozen parameters, anew at each call. Everything else is what it was
when it was recorded: ``batch_idx`` (always 0), the time, Python counters, branches that were taken. An engine keeps
recordings apart by phase of the local work, since which parameters are frozen is part of them.

What is checked, and when: ``select`` refuses modules that change buffers, draw from torch's global generator, or log
Metric objects, or read the values of tensors, before the first round. The calls 2, 4, 8, ... of every shape are
computed both ways and must agree to the bit; a step with descent at its calls 1, 2, 4, ..., to rounding; a compiled
step at its first call, in norm. What differs raises ``TraceError``; nothing is replaced silently.

``separable`` reads a list of another kind: the operations of one client's loss, without gradients, as ``listing`` makes
it at two sizes of the batch. From what is known of each tensor (``examples``) and what operations do to it
(``arithmetic``, ``layers``, ``rules``) it shows that the loss and the logged values are means over examples that do not
see each other, or says what is in the way.
"""
