import { execFileSync } from 'node:child_process';
import { join } from 'node:path';

/** A certificate and its key in a folder, which certificates of the same name replace. */
export function selfSigned(folder: string, { days = 90, name = 'server' } = {}) {
  const files = { certFile: join(folder, `${name}.crt`), keyFile: join(folder, `${name}.key`) };
  const key = [
    '-newkey',
    'ec',
    '-pkeyopt',
    'ec_paramgen_curve:prime256v1',
    '-nodes',
    '-keyout',
    files.keyFile,
  ];
  const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
  execFileSync(
    'openssl',
    ['req', '-x509', '-batch', ...key, ...names, '-days', String(days), '-out', files.certFile],
    { stdio: 'ignore' },
  );
  return files;
}
