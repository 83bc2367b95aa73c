#!/bin/bash
# dracut: takes prepaged along, so that a boot is followed from its initramfs on (docs/service.md, "Boot and session").
check() {
    require_binaries /usr/bin/prepaged || return 1
}

depends() {
    echo base
}

install() {
    inst_binary /usr/bin/prepaged
    # systemd spares who begins with this letter when it changes the root (https://systemd.io/ROOT_STORAGE_DAEMONS).
    ln_r /usr/bin/prepaged /usr/bin/@prepaged
    inst_hook pre-pivot 00 "$moddir/prepage.sh"
}
