import { execFile, execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { sha256Of } from '../../agent/upgrade/program-file.ts';
import { VERSION } from '../../shared/version.ts';
import { bundleAction } from './action.ts';
import { bundleAgent } from './agent.ts';
import { buildConsole } from './console.ts';
import { buildDebianPackage } from './debian-package.ts';
import { ROOT, sourceDate } from './repository.ts';
import { bundleWorker, workerConfiguration } from './worker.ts';

const run = promisify(execFile);

/** Packages for npm, by their folders. */
const NPM_PACKAGES = ['cli', 'client', 'vitest'];

/** The folder of a build is the same each time, because source maps name the sources relative to it. */
const WORK = join(ROOT, 'dist/release-work');

/**
 * Makes all artefacts of a release. The same commit gives the same bytes, on machines with the same versions
 * of Node, dpkg, tar and gzip.
 * @param compression of the Debian package, as `buildDebianPackage` has it
 * @returns the names of the files, sorted
 * @throws Error if the changelog has no section of this version
 */
export async function makeRelease(
  folder: string,
  compression: 'xz' | 'none' = 'xz',
): Promise<readonly string[]> {
  const notes = notesOf(readFileSync(join(ROOT, 'CHANGELOG.md'), 'utf8'), VERSION);
  for (const path of [folder, WORK]) {
    rmSync(path, { recursive: true, force: true });
    mkdirSync(path, { recursive: true });
  }
  await packWorker(folder);
  await packAction(folder);
  for (const name of NPM_PACKAGES)
    await run('npm', ['pack', `./${name}`, '--pack-destination', folder], { cwd: ROOT });
  await packPlugin(folder);
  // For hosts without the Debian package (`branchgate-agent upgrade`).
  await bundleAgent(join(folder, `branchgate-agent-${VERSION}.mjs`));
  await buildDebianPackage(folder, { compression });
  writeFileSync(join(folder, `branchgate-${VERSION}.cdx.json`), await billOfMaterials());
  writeFileSync(join(folder, 'NOTES.md'), notes);
  rmSync(WORK, { recursive: true });
  const names = readdirSync(folder).sort();
  const sums = names.map((name) => `${sha256Of(readFileSync(join(folder, name)))}  ${name}\n`);
  writeFileSync(join(folder, 'SHA256SUMS'), sums.join(''));
  return [...names, 'SHA256SUMS'];
}

/** What `npm run deploy -- --artifacts` takes. */
async function packWorker(folder: string): Promise<void> {
  const name = `branchgate-gateway-${VERSION}`;
  const { d1_databases: databases } = workerConfiguration();
  await Promise.all([
    bundleWorker(join(WORK, name, 'worker.mjs'), { deployed: true }),
    buildConsole(join(WORK, name, 'console')),
  ]);
  cpSync(join(ROOT, databases[0].migrations_dir), join(WORK, name, 'migrations'), { recursive: true });
  await pack(name, folder);
}

/** Packs the action for workflows of GitHub. */
export async function packAction(folder: string): Promise<void> {
  const name = `branchgate-action-${VERSION}`;
  rmSync(join(WORK, name), { recursive: true, force: true });
  await bundleAction(join(WORK, name, 'dist'));
  cpSync(join(ROOT, 'action/action.yml'), join(WORK, name, 'action.yml'));
  await pack(name, folder);
}

/** Builds the plugin of pytest for PyPI: a wheel, and the sources, whose archive the builder gives the time of now. */
async function packPlugin(folder: string): Promise<void> {
  const sources = join(WORK, 'python');
  cpSync(join(ROOT, 'python'), sources, { recursive: true });
  cpSync(join(ROOT, 'LICENSE'), join(sources, 'LICENSE'));
  const env = { ...process.env, SOURCE_DATE_EPOCH: String(sourceDate()) };
  const words = ['--no-isolation', '--outdir', WORK, sources];
  await run('pyproject-build', words, { env, maxBuffer: 64 * 2 ** 20 });
  const name = `pytest_branchgate-${VERSION}`;
  const [archive = ''] = readdirSync(WORK).filter(
    (file) => file.endsWith('.tar.gz') && file.startsWith('pytest'),
  );
  const made = archive.replace(/\.tar\.gz$/, '');
  await run('tar', ['-xf', join(WORK, archive), '-C', WORK]);
  if (made !== name) cpSync(join(WORK, made), join(WORK, name), { recursive: true });
  await pack(name, folder);
  cpSync(join(WORK, `${name}-py3-none-any.whl`), join(folder, `${name}-py3-none-any.whl`));
}

/** Packs a folder of the build without anything that depends on this machine (reproducible-builds.org). */
async function pack(name: string, folder: string): Promise<void> {
  const archive = join(WORK, `${name}.tar`);
  const alike = ['--sort=name', `--mtime=@${sourceDate()}`, '--owner=0', '--group=0', '--numeric-owner'];
  const options = [...alike, '--mode=u=rwX,go=rX', '--format=gnu'];
  await run('tar', [...options, '--create', '--file', archive, '--directory', WORK, name]);
  await run('gzip', ['--force', '--no-name', '--best', archive]);
  cpSync(`${archive}.gz`, join(folder, `${name}.tar.gz`));
}

interface Bill {
  serialNumber?: string;
  metadata: { timestamp?: string };
}

/**
 * CycloneDX of all packages: those of the console are built in, and so they are development dependencies. Its
 * random number and the time of its making are replaced by what follows from the commit.
 */
async function billOfMaterials(): Promise<string> {
  const words = ['sbom', '--package-lock-only', '--sbom-format', 'cyclonedx'];
  const { stdout } = await run('npm', words, { cwd: ROOT, maxBuffer: 64 * 2 ** 20 });
  const bill = JSON.parse(stdout) as Bill;
  bill.metadata.timestamp = new Date(sourceDate() * 1000).toISOString();
  delete bill.serialNumber;
  const digest = sha256Of(Buffer.from(JSON.stringify(bill)));
  // A UUID of version 8, whose content is free (RFC 9562 section 5.8).
  const uuid = digest.replace(
    /^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*$/,
    (_, ...parts: string[]) => `${parts[0]}-${parts[1]}-8${parts[2]}-8${parts[3]}-${parts[4]}`,
  );
  bill.serialNumber = `urn:uuid:${uuid}`;
  return `${JSON.stringify(bill, null, 2)}\n`;
}

/** The section of a version in the changelog, without its title. @throws Error if there is none */
export function notesOf(changelog: string, version: string): string {
  const sections = changelog.split(/^## /m);
  const section = sections.find((text) => text.startsWith(`[${version}]`));
  const notes = section?.slice(section.indexOf('\n') + 1).trim() ?? '';
  if (notes === '')
    throw new Error(
      `CHANGELOG.md has nothing about ${version}. Move what is under Unreleased to a section of it.`,
    );
  return `${notes}\n`;
}

/** @throws Error if the tag, or what is checked out, is not this release */
function checkTag(tag: string): void {
  if (tag !== `v${VERSION}`)
    throw new Error(`The tag ${tag} is not v${VERSION}, the version in package.json. Correct one of them.`);
  const changed = execFileSync('git', ['status', '--porcelain'], { cwd: ROOT, encoding: 'utf8' });
  if (changed !== '') throw new Error(`These files are not as committed:\n${changed}`);
}

/** `npm run release`, and `npm run release -- v1.0.0` for the tag of a release. */
if (import.meta.main) {
  const [tag] = process.argv.slice(2);
  if (tag !== undefined) checkTag(tag);
  const folder = join(ROOT, 'dist/release');
  for (const name of await makeRelease(folder)) console.log(join('dist/release', name));
}
