import { afterEach, expect, test, vi } from 'vitest';
import { configurationCommand } from '../../../agent/control-tool/configuration.ts';
import { UsageError } from '../../../agent/control-tool/exit-codes.ts';

const TLS = ['--tls-cert', '/tls/cert.pem', '--tls-key', '/tls/key.pem'];

afterEach(() => vi.restoreAllMocks());

function printed(...words: string[]): string {
  const write = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  configurationCommand().parse(words, { from: 'user' });
  return write.mock.calls.map(([text]) => text).join('');
}

test.each(['postgresql.conf', 'pgbouncer.ini', 'pgbouncer-standby.ini'])(
  '%s needs the certificate',
  (file) => {
    expect(() => printed(file)).toThrow(UsageError);
    expect(() => printed(file, '--tls-cert', '/tls/cert.pem')).toThrow(
      '--tls-cert and --tls-key are missing',
    );
    expect(printed(file, ...TLS)).toContain('/tls/key.pem');
  },
);

test.each([
  'pg_hba.conf',
  'pg_ident.conf',
  'postgresql.service.conf',
  'pgbouncer.service.conf',
  'pgbouncer-standby.service',
  'pgbouncer-standby.path',
  'branchgate-agent.service.conf',
  'postgresql.archive.conf',
  'pgbackrest.conf',
  'branchgate-backup.service',
  'branchgate-backup.timer',
  'branchgate-certificate.service',
  'branchgate-certificate.timer',
  'nftables.conf',
])('%s needs no certificate', (file) => {
  expect(printed(file)).not.toBe('');
});
