#!/bin/sh
# Starts Redis with a user for each kind of process: the rules of users.acl, with the passwords of the environment.
# Only sums of them are written; arguments go to the server.
set -eu

here=$(dirname "$0")
file=${ACL_FILE:-/tmp/users.acl}

sum_of() { # the sha256 of the password in the variable $1
    eval "password=\${$1:-}"
    case "$password" in
    '' | *[!A-Za-z0-9._~-]*)
        echo "$1 must be set, and of letters, digits and . _ ~ - alone, for it stands in an address." \
            "'openssl rand -hex 24' makes one." >&2
        exit 1
        ;;
    esac
    if [ ${#password} -lt 12 ]; then
        echo "$1 must have at least 12 characters." >&2
        exit 1
    fi
    printf %s "$password" | sha256sum | cut -d' ' -f1
}

web=$(sum_of REDIS_WEB_PASSWORD)
site=$(sum_of REDIS_SITE_PASSWORD)
gpu=$(sum_of REDIS_GPU_PASSWORD)
umask 077
sed "s/@WEB@/$web/; s/@SITE@/$site/; s/@GPU@/$gpu/" "$here/users.acl" >"$file"
exec valkey-server --aclfile "$file" "$@"
