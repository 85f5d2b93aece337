# slotd's boot script for U-Boot: starts one of two slots, and counts the boots of one that is not proven.
#
#   mkimage -A arm64 -T script -C none -d boot.cmd boot.scr
#
# U-Boot runs boot.scr from the boot partition by itself (distro boot, which sets devtype, devnum, distro_bootpart and
# the *_addr_r variables). It needs the commands setexpr, test, itest, env import, env export, part, load, booti, cmp.
#
# In the environment, written by slotd and read here; numbers are hexadecimal without 0x:
#
#   slotd_order    both slots, the preferred one first: "B A"
#   slotd_a_ok     1: slot A is proven, and is started without being counted; 0: it is not proven; not set: it is empty
#   slotd_a_tries  boots that slot A has left where it is not proven; one is taken off BEFORE each
#   slotd_b_ok, slotd_b_tries  the same for slot B
#   slotd_tries    boots that the trial was given; passed on as slotd.tries=
#   slotd_machine_id, slotd_deadline, slotd_panic
#                  where set: the disk's machine id for the kernel's command line, and on a trial the seconds that it has to prove
#                  itself, and from a panic to the reboot
#
# A slot's kernel is /boot/Image or /boot/vmlinuz in the slot, its initrd /boot/initrd.img, its device tree
# /boot/dtbs/${fdtfile} or /boot/dtb (U-Boot's own without one). An image may have /usr/lib/slotd/uboot.env, text with:
#
#   slotd_options=         kernel options of the image
#   slotd_trial_deadline=  seconds that a trial boot has to prove itself, where the environment does not say (600 without it)
#
# A slot that is not proven and has no tries left, or none set, is never started. Where neither slot can be started, a
# message says so and the machine waits: it is not reset, and no counter is set back. An environment that cannot be
# read, or has none of these variables (as the built-in one after a torn write), says nothing against a slot: slot A is
# started, or B where A has no kernel, and nothing is written.

# In a text between double quotes U-Boot's shell takes no apostrophe.

# ---- Settings: slotd-mkimage puts a disk's own in the place of these

# Where the environment is:
#   own    U-Boot's own place: U-Boot has read it, and saveenv writes it
#   file   one file on the boot partition: fatwrite can leave half of it after a power cut
#   files  two files on the boot partition, written in turn
#   raw    two copies behind one another at the start of a partition, written in turn; sectors of 512 bytes
# Except for own, U-Boot itself must be built without a redundant environment: env import -c would expect its flags.
setenv slotd_store files
# Bytes of a copy, as in fw_env.config, and the same in sectors.
setenv slotd_size 0x2000
setenv slotd_sectors 0x10
setenv slotd_file uboot.env
setenv slotd_second uboot-redund.env
# Names of partitions: of the environment (raw), of the slots.
setenv slotd_partition ubootenv
setenv slotd_a_label root-a
setenv slotd_b_label root-b
# More options for the kernel.
setenv slotd_extra

# ---- Memory: behind the place of the initrd, which is loaded after all that needs them

setexpr slotd_copy0 ${ramdisk_addr_r} + 0x100000
setexpr slotd_copy1 ${ramdisk_addr_r} + 0x200000
# One copy without its byte of flags, as env import and env export have it.
setexpr slotd_plain ${ramdisk_addr_r} + 0x300000
setexpr slotd_plain4 0x${slotd_plain} + 4
setexpr slotd_check ${ramdisk_addr_r} + 0x400000
setexpr slotd_running ${ramdisk_addr_r} + 0x500000

# ---- Read the environment

setenv slotd_readable
setenv slotd_length ${slotd_size}
if test "${slotd_store}" = own; then
  setenv slotd_readable 1
else
  # Nothing that was set before counts for what the environment says.
  setenv slotd_order
  setenv slotd_a_ok
  setenv slotd_a_tries
  setenv slotd_b_ok
  setenv slotd_b_tries
  setenv slotd_tries
  setenv slotd_machine_id
  setenv slotd_deadline
  setenv slotd_panic
fi
if test "${slotd_store}" = file; then
  mw.b 0x${slotd_plain} 0 ${slotd_size}
  if load ${devtype} ${devnum}:${distro_bootpart} 0x${slotd_plain} ${slotd_file}; then
    setenv slotd_readable 1
  fi
fi
if test "${slotd_store}" = files || test "${slotd_store}" = raw; then
  mw.b 0x${slotd_copy0} 0 ${slotd_size}
  mw.b 0x${slotd_copy1} 0 ${slotd_size}
  if test "${slotd_store}" = raw; then
    ${devtype} dev ${devnum}
    part start ${devtype} ${devnum} ${slotd_partition} slotd_sector0
    setexpr slotd_sector1 0x${slotd_sector0} + ${slotd_sectors}
    ${devtype} read 0x${slotd_copy0} 0x${slotd_sector0} ${slotd_sectors}
    ${devtype} read 0x${slotd_copy1} 0x${slotd_sector1} ${slotd_sectors}
  else
    load ${devtype} ${devnum}:${distro_bootpart} 0x${slotd_copy0} ${slotd_file}
    load ${devtype} ${devnum}:${distro_bootpart} 0x${slotd_copy1} ${slotd_second}
  fi
  setexpr slotd_length ${slotd_size} - 1
  setenv slotd_length 0x${slotd_length}
  setexpr slotd_data ${slotd_size} - 5
  # Which copies are good. Of each one only a variable is asked for that nobody has: that checks its CRC.
  setenv slotd_good0
  setenv slotd_good1
  for slotd_c in 0 1; do
    if test "${slotd_c}" = 0; then setenv slotd_at ${slotd_copy0}; else setenv slotd_at ${slotd_copy1}; fi
    setexpr slotd_at4 0x${slotd_at} + 4
    setexpr slotd_at5 0x${slotd_at} + 5
    cp.b 0x${slotd_at} 0x${slotd_plain} 4
    cp.b 0x${slotd_at5} 0x${slotd_plain4} 0x${slotd_data}
    if test "${slotd_c}" = 0; then setexpr.b slotd_flags0 *0x${slotd_at4}; else setexpr.b slotd_flags1 *0x${slotd_at4}; fi
    if env import -c 0x${slotd_plain} ${slotd_length} slotd_nobody; then
      if test "${slotd_c}" = 0; then setenv slotd_good0 1; else setenv slotd_good1 1; fi
    fi
  done
  # Which one counts: the larger number, but 0 follows ff.
  setenv slotd_use
  if test -n "${slotd_good0}" && test -n "${slotd_good1}"; then
    setenv slotd_use 0
    if itest.b 0x${slotd_flags1} -gt 0x${slotd_flags0}; then setenv slotd_use 1; fi
    if test "${slotd_flags0}" = ff && test "${slotd_flags1}" = 0; then setenv slotd_use 1; fi
    if test "${slotd_flags1}" = ff && test "${slotd_flags0}" = 0; then setenv slotd_use 0; fi
  elif test -n "${slotd_good0}"; then
    setenv slotd_use 0
  elif test -n "${slotd_good1}"; then
    setenv slotd_use 1
  fi
  if test -n "${slotd_use}"; then
    setenv slotd_readable 1
    if test "${slotd_use}" = 0; then
      setenv slotd_at ${slotd_copy0}
      setenv slotd_target ${slotd_copy1}
      setenv slotd_target_file ${slotd_second}
      setenv slotd_target_sector ${slotd_sector1}
      setexpr slotd_flags 0x${slotd_flags0} + 1
    else
      setenv slotd_at ${slotd_copy1}
      setenv slotd_target ${slotd_copy0}
      setenv slotd_target_file ${slotd_file}
      setenv slotd_target_sector ${slotd_sector0}
      setexpr slotd_flags 0x${slotd_flags1} + 1
    fi
    if test "${slotd_flags}" = 100; then setenv slotd_flags 0; fi
    setexpr slotd_at5 0x${slotd_at} + 5
    cp.b 0x${slotd_at} 0x${slotd_plain} 4
    cp.b 0x${slotd_at5} 0x${slotd_plain4} 0x${slotd_data}
  fi
fi
if test -n "${slotd_readable}" && test "${slotd_store}" != own; then
  if env import -c 0x${slotd_plain} ${slotd_length} slotd_order slotd_a_ok slotd_a_tries slotd_b_ok slotd_b_tries slotd_tries slotd_machine_id slotd_deadline slotd_panic; then
    true
  else
    setenv slotd_readable
  fi
fi

if test -z "${slotd_readable}"; then
  echo "slotd: the environment cannot be read; it is left as it is"
  setenv slotd_order "A B"
  setenv slotd_a_ok 1
  setenv slotd_b_ok 1
elif test -z "${slotd_order}"; then
  setenv slotd_order "A B"
  if test -z "${slotd_a_ok}" && test -z "${slotd_b_ok}"; then
    echo "slotd: the environment says nothing of the slots"
    setenv slotd_a_ok 1
    setenv slotd_b_ok 1
  fi
fi

# ---- Try the slots in order

for slotd_s in ${slotd_order}; do
  setenv slotd_go
  setenv slotd_left
  if test "${slotd_s}" = A; then
    setenv slotd_name a
    setenv slotd_label ${slotd_a_label}
    if test "${slotd_a_ok}" = 1; then
      setenv slotd_go good
    elif test "${slotd_a_ok}" = 0 && test -n "${slotd_a_tries}"; then
      if test 0x${slotd_a_tries} -gt 0; then setenv slotd_go trial; setexpr slotd_left 0x${slotd_a_tries} - 1; fi
    fi
  elif test "${slotd_s}" = B; then
    setenv slotd_name b
    setenv slotd_label ${slotd_b_label}
    if test "${slotd_b_ok}" = 1; then
      setenv slotd_go good
    elif test "${slotd_b_ok}" = 0 && test -n "${slotd_b_tries}"; then
      if test 0x${slotd_b_tries} -gt 0; then setenv slotd_go trial; setexpr slotd_left 0x${slotd_b_tries} - 1; fi
    fi
  fi

  # A try is taken off, and that is on the medium, before the slot is started.
  if test "${slotd_go}" = trial; then
    setenv slotd_go
    setenv slotd_saved
    if test "${slotd_store}" = own; then
      setenv slotd_${slotd_name}_tries ${slotd_left}
      if saveenv; then setenv slotd_saved 1; fi
    else
      # The stored variables take the place of the running ones for a moment, so that all of them are kept and none is
      # added. Shell variables outlive that.
      slotd_x_name=${slotd_name}
      slotd_x_left=${slotd_left}
      slotd_x_plain=0x${slotd_plain}
      slotd_x_length=${slotd_length}
      slotd_x_running=0x${slotd_running}
      slotd_x_made=0
      if env export -b -s 0x40000 ${slotd_x_running}; then
        if env import -d -c ${slotd_x_plain} ${slotd_x_length}; then
          setenv slotd_${slotd_x_name}_tries ${slotd_x_left}
          if env export -c -s ${slotd_x_length} ${slotd_x_plain}; then slotd_x_made=1; fi
          env import -d -b ${slotd_x_running} 0x40000
        fi
      fi
      if test "${slotd_x_made}" = 1; then
        mw.b 0x${slotd_check} 0 ${slotd_size}
        if test "${slotd_store}" = file; then
          setenv slotd_target ${slotd_plain}
          setenv slotd_target_file ${slotd_file}
        else
          setexpr slotd_at4 0x${slotd_target} + 4
          setexpr slotd_at5 0x${slotd_target} + 5
          cp.b 0x${slotd_plain} 0x${slotd_target} 4
          mw.b 0x${slotd_at4} 0x${slotd_flags}
          cp.b 0x${slotd_plain4} 0x${slotd_at5} 0x${slotd_data}
        fi
        if test "${slotd_store}" = raw; then
          if ${devtype} write 0x${slotd_target} 0x${slotd_target_sector} ${slotd_sectors}; then
            ${devtype} read 0x${slotd_check} 0x${slotd_target_sector} ${slotd_sectors}
          fi
        else
          if fatwrite ${devtype} ${devnum}:${distro_bootpart} 0x${slotd_target} ${slotd_target_file} ${slotd_size}; then
            load ${devtype} ${devnum}:${distro_bootpart} 0x${slotd_check} ${slotd_target_file}
          fi
        fi
        if cmp.b 0x${slotd_target} 0x${slotd_check} ${slotd_size}; then setenv slotd_saved 1; fi
      fi
    fi
    if test -n "${slotd_saved}"; then
      setenv slotd_go trial
    else
      echo "slotd: the environment cannot be written, so the trial of slot ${slotd_s} is not started"
    fi
  fi

  if test -n "${slotd_go}"; then
    setenv slotd_part
    setenv slotd_uuid
    setenv slotd_kernel
    part number ${devtype} ${devnum} ${slotd_label} slotd_part
    if test -n "${slotd_part}"; then
      part uuid ${devtype} ${devnum}:${slotd_part} slotd_uuid
      for slotd_k in /boot/Image /boot/vmlinuz; do
        if test -z "${slotd_kernel}" && test -e ${devtype} ${devnum}:${slotd_part} ${slotd_k}; then
          if load ${devtype} ${devnum}:${slotd_part} ${kernel_addr_r} ${slotd_k}; then setenv slotd_kernel ${slotd_k}; fi
        fi
      done
    fi
    if test -n "${slotd_uuid}" && test -n "${slotd_kernel}"; then
      setenv slotd_options
      setenv slotd_trial_deadline
      if test -e ${devtype} ${devnum}:${slotd_part} /usr/lib/slotd/uboot.env; then
        if load ${devtype} ${devnum}:${slotd_part} 0x${slotd_check} /usr/lib/slotd/uboot.env; then
          env import -t 0x${slotd_check} ${filesize} slotd_options slotd_trial_deadline
        fi
      fi
      test -n "${slotd_trial_deadline}" || setenv slotd_trial_deadline 600
      test -z "${slotd_deadline}" || setenv slotd_trial_deadline ${slotd_deadline}
      test -n "${slotd_panic}" || setenv slotd_panic 10
      # Of an option that is there twice the last one counts: which root is started is not the image's to say.
      setenv bootargs "ro ${slotd_options} ${slotd_extra} rootwait root=PARTUUID=${slotd_uuid} slotd.slot=${slotd_name}"
      if test -n "${slotd_machine_id}"; then setenv bootargs "${bootargs} systemd.machine_id=${slotd_machine_id}"; fi
      if test "${slotd_go}" = trial; then
        setenv bootargs "${bootargs} slotd.trial slotd.tries=${slotd_tries} slotd.trial_deadline=${slotd_trial_deadline} panic=${slotd_panic}"
      fi
      setenv slotd_initrd -
      setenv slotd_initrd_size 0
      if test -e ${devtype} ${devnum}:${slotd_part} /boot/initrd.img; then
        # From here on the environment in memory may be overwritten, so no other trial is begun by this run.
        if load ${devtype} ${devnum}:${slotd_part} ${ramdisk_addr_r} /boot/initrd.img; then
          setenv slotd_initrd ${ramdisk_addr_r}:${filesize}
          setenv slotd_initrd_size 0x${filesize}
        fi
      fi
      setenv slotd_fdt_at ${fdt_addr_r}
      if test -z "${slotd_fdt_at}"; then
        # A board without a place for a device tree, as QEMU's: behind the initrd, at the next multiple of 64 KiB.
        setexpr slotd_fdt_at ${ramdisk_addr_r} + ${slotd_initrd_size}
        setexpr slotd_fdt_at 0x${slotd_fdt_at} / 0x10000
        setexpr slotd_fdt_at 0x${slotd_fdt_at} + 1
        setexpr slotd_fdt_at 0x${slotd_fdt_at} * 0x10000
        setenv slotd_fdt_at 0x${slotd_fdt_at}
      fi
      setenv slotd_fdt ${fdtcontroladdr}
      if test -n "${fdtfile}" && test -e ${devtype} ${devnum}:${slotd_part} /boot/dtbs/${fdtfile}; then
        if load ${devtype} ${devnum}:${slotd_part} ${slotd_fdt_at} /boot/dtbs/${fdtfile}; then setenv slotd_fdt ${slotd_fdt_at}; fi
      elif test -e ${devtype} ${devnum}:${slotd_part} /boot/dtb; then
        if load ${devtype} ${devnum}:${slotd_part} ${slotd_fdt_at} /boot/dtb; then setenv slotd_fdt ${slotd_fdt_at}; fi
      fi
      echo "slotd: starting slot ${slotd_s} (${slotd_go}) ${slotd_left}"
      booti ${kernel_addr_r} ${slotd_initrd} ${slotd_fdt}
    fi
    echo "slotd: slot ${slotd_s} (${slotd_label}) cannot be started"
  fi
done

echo "slotd: no slot can be started. Both are given up, empty, or without a kernel. Nothing is changed; to start slot A"
echo "slotd: all the same, set slotd_a_ok to 1 in the environment."
while true; do sleep 60; done
