import { useQuery } from '@tanstack/react-query';
import { type NavigateFn, useNavigate } from '@tanstack/react-router';
import { useEffect, useMemo, useRef, useState } from 'react';
import { Autocomplete, Input, type Key, ListBox, ListBoxItem, TextField } from 'react-aria-components';
import { Icon, type IconName } from '../components/icon.tsx';
import { queryClient } from '../data/query-client.ts';
import { type Branch, branchesQuery, type Me, type Project, projectsQuery } from '../data/resources.ts';
import { mayChange, signOut } from '../data/session.ts';
import { chooseTheme, THEMES } from '../data/theme.ts';
import { BRANCH_PAGES, PROJECT_PAGES, seenBy, TENANT_PAGES } from './pages.ts';
import './palette.css';

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

/** Pages of the branch that is shown. Those of the other branches begin with their names. */
const ofBranch = (projectId: string, name: string, isShown: boolean): Command[] =>
  BRANCH_PAGES.map(({ to, icon, name: page }) => ({
    id: `${name} ${to}`,
    label: isShown ? page : `${name} · ${page}`,
    group: isShown ? 'Page' : 'Branch',
    icon,
    run: (navigate) => navigate({ to, params: { projectId, branch: name } }),
  }));

function ofProject({ me, projectId, branch, branches }: Known): Command[] {
  if (projectId === undefined) return [];
  const shown = branch ?? 'main';
  const pages = seenBy(PROJECT_PAGES, me).map(
    ({ to, icon, name: label }): Command => ({
      id: to,
      label,
      group: 'Page',
      icon,
      run: (navigate) => navigate({ to, params: { projectId } }),
    }),
  );
  const create = (from?: string): Command => ({
    id: `create ${from ?? ''}`,
    label: from === undefined ? 'New branch' : `New branch from ${from}`,
    group: 'Action',
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
function commandsOf(known: Known): Command[] {
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
          group: 'Project',
          icon: 'database',
          run: (navigate) => navigate({ to: '/projects/$projectId', params: { projectId: id } }),
        }),
      ),
    ...seenBy(TENANT_PAGES, me).map(
      ({ to, icon, name: label }): Command => ({
        id: to,
        label,
        group: 'Page',
        icon,
        run: (navigate) => navigate({ to }),
      }),
    ),
    page('/account', 'Your account', 'person', 'Page'),
    ...(mayChange(me) ? [page('/new', 'New project', 'plus', 'Action')] : []),
    {
      id: 'refresh',
      label: 'Refresh this page',
      group: 'Action',
      icon: 'refresh',
      run: () => queryClient.invalidateQueries(),
    },
    ...THEMES.map(
      ([theme, name]): Command => ({
        id: `theme ${theme}`,
        label: `Appearance: ${name}`,
        group: 'Action',
        icon: 'eye',
        run: () => chooseTheme(theme),
      }),
    ),
    {
      id: 'sign-out',
      label: 'Sign out',
      group: 'Action',
      icon: 'person',
      run: () => {
        // Without a response the session of the page stays, and the account's menu shows the failure.
        signOut().catch(() => {});
      },
    },
  ];
}

/** Commands with every word that was typed; those whose name begins with the first word come first. */
function matching(commands: readonly Command[], wanted: string): Command[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = new Map(
    commands.map((command) => [command, `${command.label} ${command.group}`.toLowerCase()]),
  );
  const found = commands.filter((command) => words.every((word) => texts.get(command)?.includes(word)));
  const begins = (command: Command) => (texts.get(command)?.startsWith(words[0] ?? '') ? 0 : 1);
  return found.sort((one, other) => begins(one) - begins(other));
}

interface PaletteProps {
  me: Me;
  projectId: string | undefined;
  branch: string | undefined;
  onClose: () => void;
}

/**
 * Finds a page, a project or a branch, and does what needs no further question (WAI-ARIA combobox with a list
 * box).
 */
export function Palette({ me, projectId, branch, onClose }: PaletteProps) {
  const navigate = useNavigate();
  const projects = useQuery(projectsQuery()).data;
  const branches = useQuery({ ...branchesQuery(projectId ?? ''), enabled: projectId !== undefined }).data;
  const [wanted, setWanted] = useState('');
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const opener = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
    };
  }, []);
  const commands = useMemo(
    () => commandsOf({ me, projectId, branch, projects: projects ?? [], branches: branches ?? [] }),
    [me, projectId, branch, projects, branches],
  );
  const found = useMemo(() => matching(commands, wanted), [commands, wanted]);
  const run = (id: Key) => {
    onClose();
    found.find((command) => command.id === id)?.run(navigate);
  };
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape closes it too
    <dialog
      ref={dialog}
      className="dialog palette"
      aria-label="Search and commands"
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={({ target }) => target === dialog.current && onClose()}
    >
      <Autocomplete inputValue={wanted} onInputChange={setWanted}>
        <TextField className="palette-input" aria-label="Search and commands">
          <Icon name="search" />
          <Input role="combobox" aria-expanded="true" placeholder="Go to a page, a project or a branch" />
        </TextField>
        <ListBox
          className="palette-list"
          aria-label="Results"
          items={found}
          onAction={run}
          shouldFocusOnHover
          renderEmptyState={() => <p className="nothing">Nothing matches.</p>}
        >
          {({ icon, label, group }) => (
            <ListBoxItem textValue={label}>
              <Icon name={icon} />
              <span className="grow truncate">{label}</span>
              <span className="quiet small">{group}</span>
            </ListBoxItem>
          )}
        </ListBox>
      </Autocomplete>
    </dialog>
  );
}
