"""Values that programs read on the virtual GPU are those that a GPU would give."""


def check(oomph, code, *options):
    run = oomph(
        "import torch\ncuda = torch.device('cuda')\n" + code + "\nprint('checked')", *options
    )
    assert run.status == 0 and "checked" in run.out, run.err
    return run


def test_masks_counts_and_indices_are_real(oomph):
    run = check(oomph, """
mask = torch.ones(2, 5, dtype=torch.long, device=cuda); mask[1, 3:] = 0
assert mask.sum(1).tolist() == [5, 3] and not bool(mask.bool().all())
assert mask.nonzero().shape == (8, 2) and mask.bool().cumsum(1)[1].tolist() == [1, 2, 3, 3, 3]
big = torch.tril(torch.ones(2048, 2048, dtype=torch.bool, device=cuda))
assert int(big.sum()) == 2048 * 2049 // 2
ids = torch.randint(0, 50, (1000,), device=cuda)
values, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
assert int(counts.sum()) == 1000 and torch.equal(values[inverse], ids) and int(ids.max()) < 50
assert torch.bincount(ids, minlength=50).sum().item() == 1000
assert ids[ids > 24].numel() == int((ids > 24).sum())
assert torch.repeat_interleave(torch.tensor([1, 2, 3], device=cuda)).tolist() == [0, 1, 1, 2, 2, 2]
assert torch.where(ids < 10)[0].numel() == int((ids < 10).sum())
""")  # fmt: skip
    assert not [a for a in run.json["assumptions"] if a["kind"] in ("value", "shape")]


def test_small_floats_are_computed_forward_and_backward(oomph):
    check(oomph, """
torch.manual_seed(0)
w = torch.randn(8, 8, device=cuda, requires_grad=True); x = torch.randn(4, 8, device=cuda)
loss = torch.nn.functional.gelu(x @ w).pow(2).mean(); loss.backward()
w2 = w.detach().cpu().requires_grad_(); loss2 = torch.nn.functional.gelu(x.cpu() @ w2).pow(2).mean(); loss2.backward()
assert loss2 > 0 and torch.allclose(loss.cpu(), loss2, rtol=1e-5) and torch.allclose(w.grad.cpu(), w2.grad, rtol=1e-4)
assert (loss / 4).grad_fn._saved_other.item() == 4  # a number, as graphs save it
scaler = torch.amp.GradScaler("cuda"); optimizer = torch.optim.SGD([w], lr=.1)
scaler.scale((x @ w).sum()).backward(); scaler.step(optimizer); scaler.update()
assert scaler.get_scale() == 65536.0
""")  # fmt: skip


def test_the_gradient_scaler_keeps_its_scale_where_gradients_are_not_computed(oomph):
    """Loops that look whether the scale fell would never step their schedule."""
    run = check(oomph, """
model = torch.nn.Linear(2048, 2048).cuda()
scaler = torch.amp.GradScaler("cuda"); optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for _ in range(3):
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.randn(4096, 2048, device=cuda)).square().mean()
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    assert scaler.get_scale() == 65536.0
""")  # fmt: skip
    assert "the gradient scaler skips no step" in str(run.json["assumptions"])


def test_comparing_whole_tensors(oomph):
    """These answer in Python, so that no tensor shows what they came from."""
    run = check(oomph, """
a = torch.arange(6., device=cuda); b = a * (1 + 1e-6)
assert torch.allclose(a, b) and not torch.allclose(a, b + 1) and torch.allclose(a, b[:1] * 0 + a)
assert torch.equal(a, a.clone()) and not torch.equal(a, b + 1)
large = torch.randn(4 << 20, device=cuda)
assert torch.allclose(large, large * 2)  # nobody computed them
""")  # fmt: skip
    assert "unknown tensors were assumed to be equal" in str(run.json["assumptions"])


def test_zeros_take_no_memory_of_the_host(oomph):
    """Inductor and Triton zero a buffer of the size of the second-level cache a hundred times for each kernel that they time."""
    check(oomph, """
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
flags = torch.ones(1000, dtype=torch.int, device=cuda)
buffers = [torch.empty(12 << 20, dtype=torch.int, device=cuda).zero_() for _ in range(4)]
buffers.append(torch.zeros(12 << 20, dtype=torch.int, device=cuda))
before = resident()
for buffer in buffers:
    buffer.zero_(); torch.zeros_like(buffer)
assert resident() - before < 48 << 20, "five buffers of 48 MiB were written"
flags[1:500].zero_()
ones = torch.ones(4, 6, dtype=torch.int, device=cuda); ones[:, 2].zero_()
assert flags.sum() == 501 and ones.sum() == 20 and buffers[-1].sum() == 0
buffers[0].fill_(2).zero_()[5] = 3
assert buffers[0].sum() == 3
""")  # fmt: skip


def test_the_cpu_random_state_is_left_alone(oomph):
    check(oomph, """
torch.manual_seed(3); a = torch.rand(4)
torch.manual_seed(3); torch.randn(100, device=cuda); torch.randint(9, (9,), device=cuda); b = torch.rand(4)
assert torch.equal(a, b)
""")  # fmt: skip


def test_long_products_are_not_computed_and_half_ones_are(oomph):
    """A CPU may multiply half precision hundreds of times slower than single: minutes a step."""
    run = check(oomph, """
a, b = torch.ones(2000, 1000).cuda().half(), torch.ones(1000, 2000).cuda().half()
assert (a @ b)[0, 0].item() == 0.0 and (a[:64] @ b[:, :64])[0, 0].item() == 1000.0
x, w = torch.ones(16, 64, 32, 32).cuda(), torch.ones(64, 64, 3, 3).cuda()
assert torch.conv2d(x, w).max().item() == 0.0 and torch.conv2d(x[:1, :2], w[:, :2])[0, 0, 1, 1].item() == 18.0
""")  # fmt: skip
    assert any(a["kind"] == "value" for a in run.json["assumptions"])


def test_unknown_values_are_said(oomph):
    run = check(oomph, """
big = torch.randn(4096, 4096, device=cuda)
assert (big @ big).sum().item() == 0.0
assert (big > 0).sum().item() == 4096 * 4096 // 2
assert bool(torch.isfinite(big).all()) and not bool(torch.isnan(big).any())
""")  # fmt: skip
    found = [a for a in run.json["assumptions"] if a["kind"] == "value"]
    assert found and all(a["location"].split(":")[0].endswith("script.py") for a in found)


def test_the_rule_for_unknown_shapes_is_the_users(oomph):
    code = "big = torch.randn(2048, 2048, device=cuda); print('kept', big[big > 0].numel())"
    assert f"kept {2048 * 1024}" in check(oomph, code).out
    assert "kept 0\n" in check(oomph, code, "--unknown", "none").out
    assert f"kept {2048 * 2048}\n" in check(oomph, code, "--unknown", "all").out


def test_autograd_takes_the_same_path_as_without_the_layer(oomph):
    # Gradients of a value that is used twice are accumulated in place: four buffers, not five.
    check(oomph, """
x = torch.randn(1 << 22, device=cuda, requires_grad=True)
y = x * 1.0
loss = (y * 2 + y * 3).sum()
torch.cuda.reset_peak_memory_stats(); before = torch.cuda.memory_allocated()
loss.backward()
assert (torch.cuda.max_memory_allocated() - before) >> 24 <= 3, (torch.cuda.max_memory_allocated() - before) >> 24
""")  # fmt: skip


def test_masks_of_large_dropouts_take_no_memory(oomph):
    check(oomph, """
import resource
x = torch.empty(60 << 20, device=cuda, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
torch.nn.functional.dropout(x, 0.5).sum().backward()
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10
small = torch.nn.functional.dropout(torch.ones(1000, device=cuda), 0.5)
assert 300 < int((small == 2).sum()) < 700 and int(((small == 0) | (small == 2)).sum()) == 1000
""")  # fmt: skip


def test_a_small_tensor_repeated_is_as_known_as_itself(oomph):
    """`torch.istft` refuses a window whose overlapping squares have a zero, and asks for that with `equal`."""
    run = check(oomph, """
window = torch.hann_window(2048, device=cuda)
wave = torch.randn(2, 131072, device=cuda)
spectrum = torch.stft(wave, 2048, 512, window=window, return_complex=True)
assert torch.istft(spectrum, 2048, 512, window=window, length=131072).shape == wave.shape
""")  # fmt: skip
    assert "unknown tensors were assumed to be equal" not in str(run.json["assumptions"])


def test_checks_of_unknown_values_pass(oomph):
    run = check(oomph, """
x = torch.randn(1024, 1024, device=cuda)
scale = (x @ x)[:, :17].exp()
noise = torch.distributions.Normal(x[:, :17], scale)
noise.log_prob(noise.rsample())
""")  # fmt: skip
    assert "a check of uncomputed values was assumed to pass" in str(run.json["assumptions"])


def test_forward_mode_derivatives(oomph):
    check(oomph, """
def f(x, w):
    return torch.tanh(torch.nn.functional.linear(x, w)).sum()
x, w = torch.rand(5, 3, device=cuda), torch.rand(4, 3, device=cuda)
assert torch.func.vmap(torch.func.hessian(f), (0, None))(x, w).shape == (5, 3, 3)
slope = torch.func.jvp(lambda a: f(a, w), (x[0],), (torch.ones(3, device=cuda),))[1]
true = torch.func.jvp(lambda a: f(a, w.cpu()), (x[0].cpu(),), (torch.ones(3),))[1]
assert torch.allclose(slope.cpu(), true)
""")  # fmt: skip


def test_sparse_matrices_keep_their_number_of_entries(oomph):
    check(oomph, """
place = torch.tensor([[0, 1, 1, 0], [2, 0, 0, 1]], device=cuda)
matrix = torch.sparse_coo_tensor(place, torch.ones(4, device=cuda), (2, 3)).coalesce()
assert matrix._nnz() == 3 and matrix.indices().tolist() == [[0, 0, 1], [1, 2, 0]]
x = torch.ones(3, 5, device=cuda, requires_grad=True)
out = torch.sparse.mm(matrix, x); out.sum().backward()
assert out.shape == (2, 5) and x.grad.shape == x.shape
""")  # fmt: skip


def test_matrix_exponentials_of_known_and_unknown_matrices(oomph):
    run = check(oomph, """
assert abs(torch.linalg.matrix_exp(torch.eye(3, device=cuda))[0, 0].item() - 2.71828) < 1e-4
x = torch.randn(1024, 1024, device=cuda)
assert torch.linalg.matrix_exp((x @ x)[:64, :16].reshape(64, 4, 4)).shape == (64, 4, 4)
""")  # fmt: skip
    assert "unknown matrices: of norm zero" in str(run.json["assumptions"])


def test_a_singular_matrix_is_an_error_and_a_regular_one_is_not(oomph):
    run = oomph("""
        import torch
        regular = torch.eye(3, device="cuda") * 2
        assert torch.linalg.inv(regular).cpu().equal(torch.eye(3) / 2)
        for call in (torch.linalg.inv, torch.linalg.cholesky):
            try:
                call(torch.zeros(3, 3, device="cuda"))
            except torch.linalg.LinAlgError as error:
                print("refused", error)
    """)  # fmt: skip
    assert run.out.count("refused") == 2, run.out + run.err
    assert not [a for a in run.json["assumptions"] if a["kind"] == "value"]


def test_what_makes_the_host_wait_is_told_to_programs_that_forbid_it(oomph):
    run = oomph("""
        import torch
        x = torch.tensor([1, 2, 2], device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        for call in (x.bincount, x.unique, x.nonzero, x.sum().item, lambda: torch.equal(x, x[:])):
            try:
                call()
            except RuntimeError as error:
                print("refused", error)
        x + x
    """)  # fmt: skip
    assert run.status == 0 and run.out.count("called a synchronizing CUDA operation") == 5, run.out


def test_batch_normalization_of_a_scripted_model_is_evaluated(oomph):
    """TorchScript calls the operator without cuDNN, whose statistics a CPU leaves empty."""
    run = oomph("""
        import torch
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4, affine=False)).eval()
        x = torch.randn(2, 3, 5, 5)
        expected = model(x)
        torch.testing.assert_close(torch.jit.script(model.cuda())(x.cuda()).cpu(), expected, atol=1e-4, rtol=1e-4)
        print("equal")
    """)  # fmt: skip
    assert "equal" in run.out and not run.json["assumptions"], run.err


def test_operators_that_ask_for_values_get_them(oomph):
    run = check(oomph, """
x = torch.tensor([1., -2., 3.], device=cuda)
x[x > 0] = torch.tensor(5., device=cuda)  # a number on the GPU: the mask becomes positions
assert x.tolist() == [5, -2, 5]
assert torch.normal(x, torch.full_like(x, 1e-6)).round().tolist() == [5, -2, 5]
try: torch.normal(x, x)
except RuntimeError as error: assert "std >= 0" in str(error)
else: assert False
assert torch.linalg.pinv(torch.diag(x)).diagonal().cpu().allclose(1 / x.cpu())
assert torch.rand(0, 3, device=cuda).shape == (0, 3)
chosen = torch.multinomial(torch.tensor([0., 1., 1.], device=cuda), 50, replacement=True)
assert set(chosen.tolist()) == {1, 2}
""")  # fmt: skip
    assert not run.json["assumptions"]


def test_a_programs_modes_do_not_see_what_computes_values(oomph):
    check(oomph, """
import pickle, torchvision
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

class Seen(TorchFunctionMode):
    names = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__); return func(*args, **(kwargs or {}))

x = torch.ones(4, 4, device=cuda)
with Seen(): y = (x + x).sum()
assert Seen.names == ["add", "sum"] or Seen.names == ["__add__", "sum"], Seen.names
with FlopCounterMode(display=False):  # an operator of a library, under a mode
    assert torchvision.ops.nms(torch.rand(5, 4, device=cuda).cumsum(1), torch.rand(5, device=cuda), 0.5).numel() >= 1
torch.set_default_device("cuda")
layer = torch.nn.Linear(4, 4)
layer.load_state_dict(pickle.loads(pickle.dumps(layer.state_dict())))
assert layer(x).shape == (4, 4)
""")  # fmt: skip


def test_large_tensors_of_one_value_are_known(oomph):
    """A mask of ones beyond the largest float tensor that is computed was half true, by the rule for unknown comparisons."""
    run = check(oomph, """
import torch.nn.functional as F
for _ in range(2):
    ones = torch.ones((6, 50176), device=cuda)
    assert ones.all() and ones.bool().any() and ones.min() == 1 and ones.max().item() == 1 and not (~ones.bool()).any()
    assert ones.sum().item() == 6 * 50176 and ones.sum(1).tolist() == [50176] * 6 and ones.new_zeros(1000, 1000).sum() == 0
    assert torch.equal(ones, torch.ones_like(ones)) and not torch.equal(ones, torch.zeros_like(ones))
    assert ones[:, None, None].expand(6, 1, 7, 50176).to(torch.bool).all() and ones.cpu().all()
    assert ones[ones > 0.5].numel() == ones.numel() and ones[ones < 0.5].numel() == 0
    assert ((1 - ones) * torch.finfo(torch.float32).min == 0).all() and torch.cat([ones, ones]).sum() == 12 * 50176
    assert ones.masked_fill(ones.bool(), 3.0).mean() == 3 and ones.cumsum(1)[2, 100].item() == 101
    pixels = torch.full((4, 3, 512, 512), 0.5, device=cuda)
    assert pixels[0, 0, 3, 4].item() == 0.5 and pixels.half().mean().item() == 0.5
    host = torch.ones(64, 512, 608, dtype=torch.long)
    seen = F.interpolate(host.to(cuda)[:, None].float(), size=(16, 19)).long()
    assert seen[:, 0].sum(1)[:, 0].tolist() == [16] * 64 and seen[:, 0].sum(2).max().item() == 19
    ones.mul_(3); assert ones.sum().item() == 18 * 50176
    ones[2].fill_(3); assert ones.sum().item() == 18 * 50176
    ones += torch.arange(50176, device=cuda); assert ones[0, 7].item() == 10
    del ones
""")  # fmt: skip
    assert not [a for a in run.json["assumptions"] if a["kind"] in ("value", "shape")]


def test_a_write_of_other_values_forgets_the_one_value(oomph):
    for write in (
        "ones.normal_()",
        "ones[0, :50176] = 0",
        "ones[3] = large[3]",
        "ones.copy_(large)",
        "ones.mul_(large)",
        "torch._foreach_add_([ones], [large])",
        "torch.add(large, 1, out=ones)",
        "del ones; ones = torch.empty(6, 50177, device=cuda); ones.uniform_()",
    ):
        run = check(
            oomph,
            f"""
large = torch.rand(6, 50177, device=cuda)
ones = torch.ones(6, 50177, device=cuda)
{write}
ones.sum().item()
""",
        )
        said = [a["what"] for a in run.json["assumptions"]]
        assert any("read a GPU value, which oomph does not compute" in what for what in said), write


def test_what_a_copy_to_the_host_reads_is_of_this_tensor(oomph):
    """Memory that integers were computed in held them still when a large tensor of floats had it: copies took as much of the host's, and seconds."""
    check(oomph, """
size = 48 << 20
factors = torch.randn(1 << 21, 3, device=cuda), torch.randn(3, 6, device=cuda)
def grown(code):
    before = int(open("/proc/self/statm").read().split()[1])
    kept = code()
    return (int(open("/proc/self/statm").read().split()[1]) - before) * 4096, kept
def there_and_back():
    integers = torch.arange(size // 8, device=cuda)
    known = integers[-1].item(); del integers
    floats = factors[0] @ factors[1]
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    bytes_of = torch.empty(0, dtype=torch.uint8, device=cuda).set_(floats.untyped_storage())
    host.copy_(bytes_of, non_blocking=True)
    return known, host, torch.empty_like(host, device=cuda).copy_(host, non_blocking=True)
more, (known, host, back) = grown(there_and_back)
assert known == size // 8 - 1 and more < size // 2, more >> 20
written = torch.arange(size // 8).pin_memory()
assert written.cuda().sum().item() == sum(range(size // 8)) and written[-1] == size // 8 - 1
""")  # fmt: skip


def test_operators_of_the_cpu_give_what_they_do_alone(oomph):
    check(oomph, """
x = torch.full((3, 4), 2.0)
x[1, :2] = torch.tensor([5.0, 6.0])
assert x.sum().item() == 31 and x.new_zeros(2, device=cuda).is_cuda and torch.zeros_like(x, device=cuda).is_cuda
y = torch.empty(3, 4); torch.add(x, 1, out=y)
assert y[1, 0] == 6 and torch.stack([x, y]).shape == (2, 3, 4) and x.to(cuda).add(1).cpu().equal(y)
""")  # fmt: skip
