# slotd's boot script for U-Boot: starts the slot that its environment prefers, takes a try from one that is not proven yet, goes
# on with the other slot when one cannot be started, and stops at a message when there is none.
#
#   slotd_order                       `A B` or `B A`: the preferred slot first
#   slotd_a_ok, slotd_b_ok            1: proven, never counted; 0: not proven; not set: holds nothing
#   slotd_a_tries, slotd_b_tries      boots left to a slot that is not proven; not set: none
#   slotd_tries                       boots that the trial was given
#   slotd_machine_id, slotd_deadline, slotd_panic    go to the kernel's command line, the last two on a trial only
#
# Numbers are hexadecimal without 0x. What goes before these lines names the disk's own things, with l_ in front as all
# variables of the shell here: variables of the environment are replaced while the script runs.
#
#   l_place    where the variables lie: own (U-Boot's own environment), file, or pair (two raw copies, the redundant format)
#   l_file     file: its path on the boot partition
#   l_part     pair: the number of its partition
#   l_blocks   pair: blocks of a copy
#   l_second   pair: where the second copy begins, in blocks from the partition's start
#   l_size     pair: bytes of a copy without its flags byte
#   l_part_a, l_part_b    numbers of the slots' partitions
#   l_extra    more options for the kernel
#
# Of this shell: there is no `!`, no empty value for an l_ variable and no apostrophe between double quotes, and `setexpr` writes
# hexadecimal without 0x, while `test` reads a number without it as decimal.

l_type=${devtype}
l_dev=${devnum}
l_boot=1
if test -n "${distro_bootpart}"; then l_boot=${distro_bootpart}; fi

# Buffers where an initrd will lie, which is loaded after all this: a copy of the environment without its flags byte, the two
# raw ones, and what U-Boot had.
l_buf=${ramdisk_addr_r}
setexpr slotd_x ${ramdisk_addr_r} + 0x4
l_buf4=0x${slotd_x}
setexpr slotd_x ${ramdisk_addr_r} + 0x100000
l_one=0x${slotd_x}
setexpr slotd_x ${ramdisk_addr_r} + 0x200000
l_two=0x${slotd_x}
setexpr slotd_x ${ramdisk_addr_r} + 0x300000
l_keep=0x${slotd_x}
l_valid=no

if test "${l_place}" = own; then
  l_valid=yes
elif test "${l_place}" = file; then
  if load ${l_type} ${l_dev}:${l_boot} ${l_buf} ${l_file}; then
    l_size=0x${filesize}
    # Asks for nothing that is there: only the checksum counts.
    if env import -c ${l_buf} ${l_size} slotd_x; then l_valid=yes; fi
  fi
elif test "${l_place}" = pair; then
  ${l_type} dev ${l_dev}
  part start ${l_type} ${l_dev} ${l_part} slotd_x
  l_first=0x${slotd_x}
  setexpr slotd_x ${l_first} + ${l_second}
  l_next=0x${slotd_x}
  ${l_type} read ${l_one} ${l_first} ${l_blocks}
  ${l_type} read ${l_two} ${l_next} ${l_blocks}
  l_ok0=no
  l_ok1=no
  for l_copy in 0 1; do
    if test ${l_copy} = 0; then l_from=${l_one}; else l_from=${l_two}; fi
    setexpr slotd_x ${l_from} + 4
    setexpr.b slotd_flags *0x${slotd_x}
    setexpr slotd_x ${l_from} + 5
    cp.b ${l_from} ${l_buf} 4
    cp.b 0x${slotd_x} ${l_buf4} ${l_size}
    # The flags are looked at before: what the environment does not hold is removed by this.
    if test ${l_copy} = 0; then l_flags0=0x${slotd_flags}; else l_flags1=0x${slotd_flags}; fi
    if env import -c ${l_buf} ${l_size} slotd_x; then
      if test ${l_copy} = 0; then l_ok0=yes; else l_ok1=yes; fi
    fi
  done
  l_use=none
  if test ${l_ok0} = yes; then l_use=0; fi
  if test ${l_ok1} = yes; then
    if test ${l_ok0} = no; then
      l_use=1
    elif test ${l_flags0} = 0xff && test ${l_flags1} = 0x0; then
      l_use=1
    elif test ${l_flags1} = 0xff && test ${l_flags0} = 0x0; then
      l_use=0
    elif test ${l_flags1} -gt ${l_flags0}; then
      l_use=1
    fi
  fi
  if test ${l_use} = 0; then
    l_from=${l_one}; l_flags=${l_flags0}; l_spare=${l_two}; l_block=${l_next}; l_valid=yes
  elif test ${l_use} = 1; then
    l_from=${l_two}; l_flags=${l_flags1}; l_spare=${l_one}; l_block=${l_first}; l_valid=yes
  fi
  if test ${l_valid} = yes; then
    setexpr slotd_x ${l_from} + 5
    cp.b ${l_from} ${l_buf} 4
    cp.b 0x${slotd_x} ${l_buf4} ${l_size}
  fi
fi

if test ${l_valid} = no; then
  echo "slotd: the environment cannot be read, taking both slots for proven, A first, and counting nothing"
  setenv slotd_order A B
  setenv slotd_a_ok 1
  setenv slotd_b_ok 1
elif test "${l_place}" != own; then
  env import -c ${l_buf} ${l_size} slotd_order slotd_a_ok slotd_b_ok slotd_a_tries slotd_b_tries slotd_tries slotd_machine_id slotd_deadline slotd_panic
fi
if test -z "${slotd_order}${slotd_a_ok}${slotd_b_ok}"; then setenv slotd_a_ok 1; fi
if test -z "${slotd_order}"; then setenv slotd_order A B; fi

for l_slot in ${slotd_order}; do
  l_try=no
  if test "${l_slot}" = A; then
    l_number=${l_part_a}
    l_name=a
    if test "${slotd_a_ok}" = 1; then
      l_try=good
    elif test "${slotd_a_ok}" = 0 && test -n "${slotd_a_tries}"; then
      if test 0x${slotd_a_tries} -gt 0; then l_try=trial; fi
    fi
  elif test "${l_slot}" = B; then
    l_number=${l_part_b}
    l_name=b
    if test "${slotd_b_ok}" = 1; then
      l_try=good
    elif test "${slotd_b_ok}" = 0 && test -n "${slotd_b_tries}"; then
      if test 0x${slotd_b_tries} -gt 0; then l_try=trial; fi
    fi
  fi

  if test ${l_try} = trial && test ${l_valid} = no; then
    echo "slotd: slot ${l_slot} is on trial and the environment is no longer known: not started"
    l_try=no
  fi
  if test ${l_try} = trial; then
    # The try is taken before the slot starts. Everything else in the environment stays, and nothing of U-Boot's own gets into
    # it: for the write the running environment is exchanged for the one that was read.
    if test "${l_place}" != own; then
      env export -c -s 0x40000 ${l_keep}
      env import -d -c ${l_buf} ${l_size}
    fi
    if test ${l_name} = a; then setexpr slotd_a_tries 0x${slotd_a_tries} - 1; else setexpr slotd_b_tries 0x${slotd_b_tries} - 1; fi
    l_written=no
    if test "${l_place}" = own; then
      if saveenv; then l_written=yes; fi
    else
      env export -c -s ${l_size} ${l_buf}
      env import -d -c ${l_keep} 0x40000
      env import -c ${l_buf} ${l_size} slotd_order slotd_a_ok slotd_b_ok slotd_a_tries slotd_b_tries slotd_tries slotd_machine_id slotd_deadline slotd_panic
      if test "${l_place}" = file; then
        if fatwrite ${l_type} ${l_dev}:${l_boot} ${l_buf} ${l_file} ${l_size}; then l_written=yes; fi
      else
        # Over the copy that does not count.
        if test ${l_flags} = 0xff; then
          l_flags=0x0
        else
          setexpr slotd_x ${l_flags} + 1
          l_flags=0x${slotd_x}
        fi
        setexpr slotd_x ${l_spare} + 4
        cp.b ${l_buf} ${l_spare} 4
        mw.b 0x${slotd_x} ${l_flags}
        setexpr slotd_x ${l_spare} + 5
        cp.b ${l_buf4} 0x${slotd_x} ${l_size}
        if ${l_type} write ${l_spare} ${l_block} ${l_blocks}; then l_written=yes; fi
        # For the other slot, should this one be none: then that copy is the one that does not count.
        if test ${l_block} = ${l_first}; then l_block=${l_next}; l_spare=${l_two}; else l_block=${l_first}; l_spare=${l_one}; fi
      fi
    fi
    if test ${l_written} = no; then
      echo "slotd: slot ${l_slot} is on trial and no try can be taken from it: not started"
      l_try=no
    fi
  fi

  if test ${l_try} != no; then
    echo "slotd: starting slot ${l_slot} (${l_try})"
    setenv slotd_options
    if load ${l_type} ${l_dev}:${l_number} ${kernel_addr_r} /usr/lib/slotd/uboot.env; then
      env import -t ${kernel_addr_r} ${filesize} slotd_options
    fi
    part uuid ${l_type} ${l_dev}:${l_number} slotd_x
    setenv bootargs root=PARTUUID=${slotd_x} ro rootwait slotd.slot=${l_name}
    if test -n "${slotd_machine_id}"; then setenv bootargs ${bootargs} systemd.machine_id=${slotd_machine_id}; fi
    if test ${l_try} = trial; then
      if test -n "${slotd_panic}"; then setenv bootargs ${bootargs} panic=${slotd_panic}; else setenv bootargs ${bootargs} panic=10; fi
      setenv bootargs ${bootargs} slotd.trial
      if test -n "${slotd_tries}"; then setenv bootargs ${bootargs} slotd.tries=${slotd_tries}; fi
      if test -n "${slotd_deadline}"; then setenv bootargs ${bootargs} slotd.trial_deadline=${slotd_deadline}; fi
    fi
    setenv bootargs ${bootargs} ${slotd_options} ${l_extra}
    # The device tree is the slot's where it has the one that the board asks for, else the one that U-Boot itself uses.
    l_tree=${fdtcontroladdr}
    if test -n "${fdtfile}" && test -e ${l_type} ${l_dev}:${l_number} /boot/dtb/${fdtfile}; then
      if load ${l_type} ${l_dev}:${l_number} ${fdt_addr_r} /boot/dtb/${fdtfile}; then l_tree=${fdt_addr_r}; fi
    fi
    if load ${l_type} ${l_dev}:${l_number} ${kernel_addr_r} /boot/vmlinuz; then
      if test -e ${l_type} ${l_dev}:${l_number} /boot/initrd.img; then
        # Over the buffers: should the kernel not start, the environment is no longer known.
        l_valid=no
        load ${l_type} ${l_dev}:${l_number} ${ramdisk_addr_r} /boot/initrd.img
        booti ${kernel_addr_r} ${ramdisk_addr_r}:${filesize} ${l_tree}
      else
        booti ${kernel_addr_r} - ${l_tree}
      fi
    fi
    echo "slotd: slot ${l_slot} cannot be started"
  fi
done

echo "slotd: no slot can be started: none is proven and none has tries left, or their kernels are missing."
echo "slotd: Ctrl-C leads to the prompt of U-Boot."
while true; do sleep 60; done
