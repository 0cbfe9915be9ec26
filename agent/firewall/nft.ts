import { execFile } from 'node:child_process';

const WITHIN_MS = 20_000;
/** A listing names every network. */
const LISTING_BYTES = 64 * 1024 * 1024;
/** Folders of `nft`, which a service's PATH may lack. */
const SYSTEM_FOLDERS = '/usr/sbin:/sbin';

/** Runs `nft` to its end. @throws Error with its complaint, or what is missing */
export function nft(args: string[], input = ''): Promise<string> {
  const env = { ...process.env, PATH: `${process.env.PATH ?? ''}:${SYSTEM_FOLDERS}` };
  const options = { env, timeout: WITHIN_MS, maxBuffer: LISTING_BYTES };
  return new Promise((resolve, reject) => {
    const child = execFile('nft', args, options, (error, stdout, stderr) => {
      if (error) reject(new Error(explain(error, stderr)));
      else resolve(stdout);
    });
    // It may end before it has read everything; its exit code says why.
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
  });
}

function explain(error: Error & { code?: unknown }, stderr: string): string {
  if (error.code === 'ENOENT') return 'install nftables';
  if (/not permitted/.test(stderr))
    return 'start the agent with CAP_NET_ADMIN (`configuration branchgate-agent.service.conf`)';
  return stderr.trim().split('\n')[0] || error.message;
}
