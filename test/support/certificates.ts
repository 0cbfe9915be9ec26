import { execFileSync } from 'node:child_process';
import { join } from 'node:path';

/** A certificate and its key in a folder, which certificates of the same name replace. */
export function selfSigned(
  folder: string,
  { days = 90, name = 'server', names = 'DNS:localhost,IP:127.0.0.1' } = {},
) {
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
  const subject = ['-subj', '/CN=localhost', '-addext', `subjectAltName=${names}`];
  execFileSync(
    'openssl',
    ['req', '-x509', '-batch', ...key, ...subject, '-days', String(days), '-out', files.certFile],
    { stdio: 'ignore' },
  );
  return files;
}
