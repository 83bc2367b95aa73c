//! What a study of 2008 printed (Andi Kleen, "Predictive bitmaps"), program by program.
//!
//! Its percentages do not follow from its numbers in every row. With the bitmap it prints -8, -3.3 and -0.05 % of CPU time, which are
//! -7.0, -2.4 and -5.6 %; with whole mappings +17 % of memory for gcc, which is +20.4 %. And its memory, printed as MB, cannot have
//! that unit. So the numbers are given as printed, and ratios are of the numbers.

/// CPU seconds and memory of one way to start.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Printed {
    /// CPU seconds, mean.
    pub cpu_s: f64,
    /// Their standard deviation.
    pub cpu_sd_s: f64,
    /// Memory in the study's unit, mean.
    pub memory: f64,
}

/// What was printed of one program.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct PrintedProgram {
    /// Its name.
    pub program: &'static str,
    /// As the kernel was.
    pub plain: Printed,
    /// Every mapping read as a whole at mmap (`mmap_slurp_all`), synchronously.
    pub slurp: Printed,
    /// The bitmap's pages read and mapped before the program runs (`pbitmap` with `early_fault`).
    pub bitmap: Printed,
}

const fn printed(cpu_s: f64, cpu_sd_s: f64, memory: f64) -> Printed {
    Printed { cpu_s, cpu_sd_s, memory }
}

const PROGRAMS: [PrintedProgram; 3] = [
    PrintedProgram {
        program: "gcc",
        plain: printed(1.57, 0.05, 5787.0),
        slurp: printed(1.42, 0.02, 6968.0),
        bitmap: printed(1.46, 0.02, 6000.0),
    },
    PrintedProgram {
        program: "emacs",
        plain: printed(0.85, 0.05, 10834.0),
        slurp: printed(0.59, 0.05, 11968.0),
        bitmap: printed(0.83, 0.01, 10875.0),
    },
    PrintedProgram {
        program: "gdb",
        plain: printed(0.18, 0.02, 2836.0),
        slurp: printed(0.12, 0.0, 4274.0),
        bitmap: printed(0.17, 0.02, 2900.0),
    },
];

/// What was printed of the program called `name`, if it was one of the study's.
pub fn printed_of(name: &str) -> Option<&'static PrintedProgram> {
    PROGRAMS.iter().find(|row| row.program == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_audit() {
        let percent = |a: f64, b: f64| (1000.0 * (a / b - 1.0)).round() / 10.0;
        let ratio = |with: Printed, plain: Printed| {
            (percent(with.cpu_s, plain.cpu_s), percent(with.memory, plain.memory))
        };
        let [gcc, emacs, gdb] = ["gcc", "emacs", "gdb"].map(|name| {
            let row = printed_of(name).unwrap();
            (ratio(row.bitmap, row.plain), ratio(row.slurp, row.plain))
        });
        assert_eq!([gcc.0, emacs.0, gdb.0], [(-7.0, 3.7), (-2.4, 0.4), (-5.6, 2.3)]);
        assert_eq!([gcc.1, emacs.1, gdb.1], [(-9.6, 20.4), (-30.6, 10.5), (-33.3, 50.7)]);
        assert_eq!(printed_of("ls"), None);
    }
}
