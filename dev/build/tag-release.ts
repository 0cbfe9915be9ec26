import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VERSION } from '../../shared/version.ts';
import { bundleAction } from './action.ts';
import { ROOT } from './repository.ts';

/** Files of the action's own repository beside its build: where each is here, and there. */
const ACTION_FILES = {
  'action/action.yml': 'action.yml',
  'action/README.md': 'README.md',
  LICENSE: 'LICENSE',
};

const SIGNED = {
  GIT_AUTHOR_NAME: 'branchgate',
  GIT_AUTHOR_EMAIL: 'release@branchgate.example',
  GIT_COMMITTER_NAME: 'branchgate',
  GIT_COMMITTER_EMAIL: 'release@branchgate.example',
};

/**
 * Tags the release in a checkout of its commit, without a change of its work tree. A workflow of GitHub runs an action
 * from the files of a tag, so the tag's commit has the build of the action, which no branch has.
 * - `v1.0.0` and `v1`: the commit, and `action/dist` on top of it
 * - `action/v1.0.0`: a commit without parents that has the action alone, for the repository that the Marketplace lists
 * @param root of the checkout
 * @param dist folder of the built action
 * @returns the tags
 */
export function tagRelease(root: string, dist: string): readonly string[] {
  const work = mkdtempSync(join(tmpdir(), 'branchgate-tag-'));
  try {
    // A rerun of the workflow makes the same commits again.
    const date = execFileSync('git', ['log', '-1', '--format=%cI'], { cwd: root, encoding: 'utf8' }).trim();
    const git = (words: readonly string[], index = 'index') =>
      execFileSync('git', words, {
        cwd: root,
        encoding: 'utf8',
        env: {
          ...process.env,
          ...SIGNED,
          GIT_AUTHOR_DATE: date,
          GIT_COMMITTER_DATE: date,
          GIT_INDEX_FILE: join(work, index),
        },
      }).trim();
    const head = git(['rev-parse', 'HEAD']);
    const add = (index: string, mode: string, blob: string, path: string) =>
      git(['update-index', '--add', '--cacheinfo', `${mode},${blob},${path}`], index);
    const built = execFileSync('find', [dist, '-type', 'f', '-printf', '%P\n'], { encoding: 'utf8' })
      .trim()
      .split('\n')
      .map((path) => ({ path, blob: git(['hash-object', '-w', '--no-filters', join(dist, path)]) }));
    const commit = (index: string, message: string, ...parents: string[]) => {
      const tree = git(['write-tree'], index);
      return git(['commit-tree', tree, ...parents.flatMap((parent) => ['-p', parent]), '-m', message], index);
    };

    git(['read-tree', head], 'whole');
    for (const { path, blob } of built) add('whole', '100644', blob, `action/dist/${path}`);
    const whole = commit('whole', `Release ${VERSION}, with the built action`, head);

    for (const [here, there] of Object.entries(ACTION_FILES))
      add('action', '100644', git(['rev-parse', `${head}:${here}`]), there);
    for (const { path, blob } of built) add('action', '100644', blob, `dist/${path}`);
    const action = commit('action', `Release ${VERSION} of the action`);

    const [major] = VERSION.split('.');
    const tags = { [`v${VERSION}`]: whole, [`v${major}`]: whole, [`action/v${VERSION}`]: action };
    for (const [tag, target] of Object.entries(tags)) git(['tag', '--force', tag, target]);
    return Object.keys(tags);
  } finally {
    rmSync(work, { recursive: true });
  }
}

/** `node dev/build/tag-release.ts`, in the workflow of a release. */
if (import.meta.main) {
  const dist = join(ROOT, 'action/dist');
  await bundleAction(dist);
  for (const tag of tagRelease(ROOT, dist)) console.log(tag);
}
