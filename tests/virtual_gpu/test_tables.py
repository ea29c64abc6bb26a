"""Tables of ones beside device memory, as the allocator of XLA fills them."""

import textwrap

import pytest

# A pool, and then memory for its table, as a program in C++ takes it.
TABLE = """
import ctypes, os

cuda, cpp = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libstdc++.so.6")
cpp._Znwm.restype = ctypes.c_void_p
cpp._Znwm.argtypes = [ctypes.c_size_t]
cpp._ZdlPv.argtypes = [ctypes.c_void_p]
device, context = ctypes.c_int(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cuda.cuCtxSetCurrent(context)
MIB = 1 << 20
SIZE = 128 * MIB

def table():
    pool = ctypes.c_void_p()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pool), ctypes.c_size_t(SIZE * 32)) == 0
    at = cpp._Znwm(SIZE)
    assert cuda.cuMemFree_v2(pool) == 0
    return at

def is_filled(at, value, size):
    return all(
        ctypes.string_at(at + start, MIB) == bytes([value]) * MIB for start in range(0, size, MIB)
    )

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
"""


def script(code):
    return TABLE + textwrap.dedent(code)


def test_a_table_of_ones_takes_no_memory_and_keeps_what_is_written_later(oomph):
    run = oomph(
        script("""
        before = resident()
        for _ in range(2):
            at = table()
            ctypes.memset(at, 255, SIZE)
            assert resident() - before < 32 * MIB, resident() - before
            assert is_filled(at, 255, SIZE)
            places = range(at, at + SIZE - 8, 3 * MIB + 4096 - 8)
            for place in places:
                ctypes.c_uint64.from_address(place).value = place
            if os.fork() == 0:
                ctypes.memset(at, 0, SIZE)
                os._exit(0)
            os.wait()
            for place in places:
                assert ctypes.c_uint64.from_address(place).value == place
                assert ctypes.string_at(place + 8, 64) == b"\\xff" * 64
            cpp._ZdlPv(at)
        print("kept")
        """)
    )
    assert "kept" in run.out, run.err


def test_whatever_is_written_in_whatever_order_is_read_again(oomph):
    run = oomph(
        script("""
        for parts in (
            [(0, 128, 0)],
            [(0, 100, 255), (100, 128, 7)],
            # From the end, and a part left out.
            [(64, 128, 255), (0, 60, 255)],
            [(0, 3, 255), (3, 4, 0), (4, 128, 255)],
        ):
            at = table()
            for first, last, value in parts:
                ctypes.memset(at + first * MIB, value, (last - first) * MIB)
            for first, last, value in parts:
                assert is_filled(at + first * MIB, value, (last - first) * MIB), parts
            cpp._ZdlPv(at)
        print("kept")
        """)
    )
    assert "kept" in run.out, run.err


def test_another_thread_may_fill_it(oomph):
    run = oomph(
        script("""
        import threading
        at = table()
        filling = threading.Thread(target=ctypes.memset, args=(at, 255, SIZE))
        filling.start(); filling.join()
        assert is_filled(at, 255, SIZE)
        print("kept")
        """)
    )
    assert "kept" in run.out, run.err


@pytest.mark.parametrize("fault", ["ctypes.string_at(8)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_fault_of_the_program_meanwhile_goes_to_its_own_handler(oomph, fault):
    run = oomph(
        script(f"""
        import faulthandler, signal
        at = table()
        ctypes.memset(at, 255, 20 * MIB)
        child = os.fork()
        if child == 0:
            {fault}
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGSEGV
        ctypes.memset(at, 255, SIZE)
        assert is_filled(at, 255, SIZE)
        print("kept")
        """)
    )
    assert "kept" in run.out, run.err
