//! See [`crate::fuzzing`].

use super::boot_manager::slot_of;
use super::load_option::LoadOption;

pub(crate) fn load_option(input: &[u8]) -> bool {
    let option = match LoadOption::parse(input) {
        Ok(option) => option,
        Err(problem) => {
            assert!(problem.contains("byte "), "{problem}");
            return false;
        }
    };
    assert_eq!(option.render(), input, "written again it is the same");
    let size = option.file().map_or(0, |file| file.chars().count());
    assert!(size <= input.len(), "{option:?}");
    let _ = (option.hard_drive(), option.arguments(), slot_of(&option));
    let active = option.clone().with_active(true);
    assert!(active.is_active() && !active.clone().with_active(false).is_active());
    let named = option.with_description("slotd A").with_arguments("x y");
    assert_eq!(
        (named.description().as_str(), named.arguments().as_str()),
        ("slotd A", "x y")
    );
    assert_eq!(LoadOption::parse(&named.render()), Ok(named));
    true
}
