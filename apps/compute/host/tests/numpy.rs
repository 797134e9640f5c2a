//! numpy itself beside this library: its files are read, ours are read by it, and what is computed is what it computes. Skipped, with a line that says why, where numpy is not
//! there.

use compute_host::npy::Array;
use compute_host::transform::{Transformer, transpose};
use compute_host::{Element, Number, multiply_add};
use std::path::PathBuf;
use std::process::Command;

/// Saves arrays, and compares what is there with what it makes of them.
const SAVE: &str = "
import numpy, sys
folder = sys.argv[1]
random = numpy.random.default_rng(5)
for kind in ('f4', 'f8'):
    for name in ('x', 'y'):
        numpy.save('%s/%s-%s.npy' % (folder, name, kind), random.normal(size=(300, 7)).astype('<' + kind) * 1000)
for kind in ('c8', 'c16'):
    matrix = random.normal(size=(64, 128)) + 1j * random.normal(size=(64, 128))
    numpy.save('%s/m-%s.npy' % (folder, kind), matrix.astype('<' + kind))
";
const COMPARE: &str = "
import numpy, sys
folder = sys.argv[1]
for kind in ('f4', 'f8'):
    x, y, a = [numpy.load('%s/%s-%s.npy' % (folder, name, kind)) for name in 'xya']
    wanted = x.dtype.type(1 / 3) * x + y
    if a.dtype != wanted.dtype or a.shape != wanted.shape or a.tobytes() != wanted.tobytes():
        sys.exit('%s: %r is not %r' % (kind, a, wanted))
for kind, epsilon in (('c8', 2.0 ** -23), ('c16', 2.0 ** -52)):
    matrix, found = [numpy.load('%s/%s-%s.npy' % (folder, name, kind)) for name in 'ms']
    wanted = numpy.fft.fft2(matrix.astype('c16'))
    if found.dtype != matrix.dtype or found.shape != wanted.shape or not found.flags.f_contiguous:
        sys.exit('%s: %r' % (kind, found))
    error, most = numpy.linalg.norm(found - wanted), epsilon * numpy.log2(wanted.size) * numpy.linalg.norm(wanted)
    if not error <= most:
        sys.exit('%s: the error is %g, and at most %g' % (kind, error, most))
print('the same')
";

fn python(script: &str, packages: &PathBuf, folder: &PathBuf) -> String {
    let output = Command::new("python3").args(["-c", script]).arg(folder).env("PYTHONPATH", packages).output();
    let output = output.expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn numpy_has_the_same() {
    let caches = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let packages = caches.unwrap_or_default().join("willow/python");
    if !packages.join("numpy").is_dir() {
        willow_skip::skip("numpy_has_the_same", "numpy is not there (scripts/bootstrap --tests)");
        return;
    }
    let folder = std::env::temp_dir().join(format!("willow-numpy-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    python(SAVE, &packages, &folder);
    let read = |name: &str| -> (Array, Vec<u8>) {
        let bytes = std::fs::read(folder.join(name)).expect("numpy's file");
        let (array, at) = Array::read(&bytes).expect("numpy's header");
        assert_eq!(array.bytes(), bytes.len() as u64 - at, "{name}");
        (array, bytes[at as usize..].to_vec())
    };
    let write = |name: &str, array: &Array, data: &[u8]| {
        std::fs::write(folder.join(name), [&array.header(), data].concat()).expect("written");
    };
    for (kind, number, alpha) in [("f4", Number::Single, f64::from(1.0f32 / 3.0)), ("f8", Number::Double, 1.0 / 3.0)] {
        let ((array, x), (other, mut y)) = (read(&format!("x-{kind}.npy")), read(&format!("y-{kind}.npy")));
        assert_eq!(
            (&array, array.element, &array.shape[..]),
            (&other, Element { number, complex: false }, &[300, 7][..])
        );
        multiply_add(number, alpha, &x, &mut y);
        write(&format!("a-{kind}.npy"), &array, &y);
    }
    for (kind, number) in [("c8", Number::Single), ("c16", Number::Double)] {
        let (array, mut matrix) = read(&format!("m-{kind}.npy"));
        let (mut transformer, mut turned) = (Transformer::default(), vec![0; matrix.len()]);
        transformer.run(number, (128, false), &mut matrix);
        transpose(&matrix, &mut turned, array.element.bytes() as usize, (64, 128));
        transformer.run(number, (64, false), &mut turned);
        write(&format!("s-{kind}.npy"), &Array { fortran_order: true, ..array }, &turned);
    }
    assert_eq!(python(COMPARE, &packages, &folder), "the same\n");
    std::fs::remove_dir_all(&folder).expect("removed");
}
