// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A folder in the place of a machine's `/`, with files of sysfs and `/proc`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder of PCI devices.
const DEVICES: &str = "sys/bus/pci/devices";

/// A folder in the place of a machine's `/`. Its methods panic where the file system refuses.
#[derive(Clone, Debug)]
pub struct MachineFolder(PathBuf);

impl MachineFolder {
    /// Makes the folder, or uses the one that is there.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// To be used as the root of a read; removed with this value.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file of one line.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn put(&self, path: &str, text: &str) {
        fs::write(self.place(path), format!("{text}\n")).expect("a file");
    }

    /// Makes a symbolic link.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn link(&self, path: &str, target: &str) {
        symlink(target, self.place(path)).expect("a link");
    }

    /// The text of a file, without the line end.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn get(&self, path: &str) -> String {
        let text = fs::read_to_string(self.0.join(path)).expect("a file");
        text.trim_end().to_owned()
    }

    /// Adds a QAT card (4xxx) that is up, without virtual functions.
    pub fn qat_card(&self, address: &str) {
        for (file, text) in [
            ("vendor", "0x8086"),
            ("device", "0x4940"),
            ("sriov_numvfs", "0"),
            ("sriov_totalvfs", "16"),
            ("qat/state", "up"),
            ("qat/cfg_services", "sym;asym"),
            ("qat/auto_reset", "off"),
        ] {
            self.put(&format!("{DEVICES}/{address}/{file}"), text);
        }
        self.bind(address, Some("4xxx"));
    }

    /// Adds a virtual function of a card, without a driver, in an IOMMU group of its own.
    pub fn qat_function(&self, card: &str, address: &str, group: u32) {
        let own = format!("{DEVICES}/{address}");
        for (file, text) in
            [("vendor", "0x8086"), ("device", "0x4941"), ("driver_override", "(null)")]
        {
            self.put(&format!("{own}/{file}"), text);
        }
        self.link(&format!("{own}/physfn"), &format!("../{card}"));
        let group = format!("../../../../kernel/iommu_groups/{group}");
        self.link(&format!("{own}/iommu_group"), &group);
    }

    /// Binds a device to a driver, or to none.
    pub fn bind(&self, device: &str, driver: Option<&str>) {
        let link = format!("{DEVICES}/{device}/driver");
        let _ = fs::remove_file(self.0.join(&link));
        if let Some(driver) = driver {
            self.link(&link, &format!("../../../../bus/pci/drivers/{driver}"));
        }
    }

    /// The path of a file whose folder there is.
    fn place(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        path
    }
}
