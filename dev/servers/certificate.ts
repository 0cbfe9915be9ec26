import { existsSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import type { OsUser } from '../processes/os-user.ts';
import { runAs } from '../processes/run-as.ts';

const YEARS = 10;

/** The self-signed certificate of both servers, created at the first start and owned by their user. */
export async function serverCertificate(
  dir: string,
  user: OsUser,
): Promise<{ certFile: string; keyFile: string }> {
  const certificate = { certFile: join(dir, 'server.crt'), keyFile: join(dir, 'server.key') };
  if (existsSync(certificate.certFile)) return certificate;
  const temporary = `${certificate.certFile}.new`;
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
  const files = ['-keyout', certificate.keyFile, '-out', temporary];
  // openssl makes the key file readable only by its owner.
  const options = ['-x509', '-batch', ...key, '-days', String(365 * YEARS), ...subject, ...files];
  await runAs(user, 'openssl', ['req', ...options], { cwd: dir });
  renameSync(temporary, certificate.certFile);
  return certificate;
}
