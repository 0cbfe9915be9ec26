import type { NavigateFn } from '@tanstack/react-router';
import type { IconName } from '../components/icon.tsx';
import { ACCOUNT_TEXT } from '../strings/account.ts';
import { TEXT } from '../strings/common.ts';
import { PALETTE_TEXT } from '../strings/palette.ts';
import { BRANCH_PAGES, PROJECT_PAGES, seenBy, TENANT_PAGES } from './pages.ts';
import { queryClient } from './query-client.ts';
import type { Branch, Me, Project } from './resources.ts';
import { mayChange, signOut } from './session.ts';
import { chooseTheme, THEMES } from './theme.ts';

export interface Command {
  id: string;
  label: string;
  group: string;
  icon: IconName;
  run: (navigate: NavigateFn) => void;
}

interface Known {
  me: Me;
  projectId: string | undefined;
  branch: string | undefined;
  projects: readonly Project[];
  branches: readonly Branch[];
}

const { groups } = PALETTE_TEXT;

/** Pages of the branch that is shown. Those of the other branches begin with their names. */
const ofBranch = (projectId: string, name: string, isShown: boolean): Command[] =>
  BRANCH_PAGES.map(([to, icon, page]) => ({
    id: `${name} ${to}`,
    label: isShown ? page : PALETTE_TEXT.inBranch(name, page),
    group: isShown ? groups.page : groups.branch,
    icon,
    run: (navigate) => navigate({ to, params: { projectId, branch: name } }),
  }));

function ofProject({ me, projectId, branch, branches }: Known): Command[] {
  if (projectId === undefined) return [];
  const shown = branch ?? 'main';
  const pages = seenBy(PROJECT_PAGES, me).map(
    ([to, icon, label]): Command => ({
      id: to,
      label,
      group: groups.page,
      icon,
      run: (navigate) => navigate({ to, params: { projectId } }),
    }),
  );
  const create = (from?: string): Command => ({
    id: `create ${from ?? ''}`,
    label: from === undefined ? PALETTE_TEXT.newBranch : PALETTE_TEXT.newBranchFrom(from),
    group: groups.action,
    icon: 'branch',
    run: (navigate) =>
      navigate({
        to: '/projects/$projectId/create-branch',
        params: { projectId },
        search: from === undefined ? {} : { from },
      }),
  });
  const others = branches.map(({ branch_name }) => branch_name).filter((name) => name !== shown);
  return [
    ...pages,
    ...ofBranch(projectId, shown, true),
    ...(mayChange(me) ? [create(), ...(branch === undefined ? [] : [create(branch)])] : []),
    ...others.flatMap((name) => ofBranch(projectId, name, false)),
  ];
}

/** Everything that the palette offers, the nearest first. */
export function commandsOf(known: Known): Command[] {
  const { me, projectId, projects } = known;
  const page = (id: '/new' | '/account', label: string, icon: IconName, group: string): Command => ({
    id,
    label,
    group,
    icon,
    run: (navigate) => navigate({ to: id }),
  });
  return [
    ...ofProject(known),
    ...projects
      .filter(({ id }) => id !== projectId)
      .map(
        ({ id, name }): Command => ({
          id,
          label: name,
          group: groups.project,
          icon: 'database',
          run: (navigate) => navigate({ to: '/projects/$projectId', params: { projectId: id } }),
        }),
      ),
    ...seenBy(TENANT_PAGES, me).map(
      ([to, icon, label]): Command => ({
        id: to,
        label,
        group: groups.page,
        icon,
        run: (navigate) => navigate({ to }),
      }),
    ),
    page('/account', PALETTE_TEXT.account, 'person', groups.page),
    ...(mayChange(me) ? [page('/new', PALETTE_TEXT.newProject, 'plus', groups.action)] : []),
    {
      id: 'refresh',
      label: PALETTE_TEXT.refresh,
      group: groups.action,
      icon: 'refresh',
      run: () => queryClient.invalidateQueries(),
    },
    ...THEMES.map(
      (theme): Command => ({
        id: `theme ${theme}`,
        label: PALETTE_TEXT.theme(ACCOUNT_TEXT.themes[theme]),
        group: groups.action,
        icon: 'eye',
        run: () => chooseTheme(theme),
      }),
    ),
    {
      id: 'sign-out',
      label: TEXT.actions.signOut,
      group: groups.action,
      icon: 'person',
      run: () => {
        // Without a response the session of the page stays, and the account's menu shows the failure.
        signOut().catch(() => {});
      },
    },
  ];
}

/** Commands with every word that was typed; those whose name begins with the first word come first. */
export function matching(commands: readonly Command[], wanted: string): Command[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = new Map(
    commands.map((command) => [command, `${command.label} ${command.group}`.toLowerCase()]),
  );
  const found = commands.filter((command) => words.every((word) => texts.get(command)?.includes(word)));
  const begins = (command: Command) => (texts.get(command)?.startsWith(words[0] ?? '') ? 0 : 1);
  return found.sort((one, other) => begins(one) - begins(other));
}
