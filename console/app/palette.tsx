import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { type KeyboardEvent, useEffect, useId, useMemo, useRef, useState } from 'react';
import { Icon } from '../components/icon.tsx';
import { TEXT } from '../strings/common.ts';
import { PALETTE_TEXT } from '../strings/palette.ts';
import { type Command, commandsOf, matching } from './palette-commands.ts';
import { branchesQuery, type Me, projectsQuery } from './resources.ts';
import './palette.css';

interface PaletteProps {
  me: Me;
  projectId: string | undefined;
  branch: string | undefined;
  onClose: () => void;
}

const MOVES: Readonly<Record<string, number>> = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };

/** Finds a page, a project or a branch, and does what needs no further question (WAI-ARIA combobox with a list). */
export function Palette({ me, projectId, branch, onClose }: PaletteProps) {
  const navigate = useNavigate();
  const projects = useQuery(projectsQuery()).data;
  const branches = useQuery({ ...branchesQuery(projectId ?? ''), enabled: projectId !== undefined }).data;
  const [wanted, setWanted] = useState('');
  const [chosen, setChosen] = useState(0);
  const dialog = useRef<HTMLDialogElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const id = useId();
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
  const active = Math.min(chosen, found.length - 1);
  useEffect(() => {
    list.current?.children[active]?.scrollIntoView({ block: 'nearest' });
  }, [active]);
  const run = (command: Command | undefined) => {
    if (!command) return;
    onClose();
    command.run(navigate);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = MOVES[event.key];
    if (step !== undefined) setChosen(Math.max(0, Math.min(found.length - 1, active + step)));
    else if (event.key === 'Enter') run(found[active]);
    else return;
    event.preventDefault();
  };
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape closes it too
    <dialog
      ref={dialog}
      className="dialog palette"
      aria-label={TEXT.nav.palette}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={({ target }) => target === dialog.current && onClose()}
    >
      <div className="palette-input">
        <Icon name="search" />
        <input
          type="text"
          role="combobox"
          aria-label={TEXT.nav.palette}
          aria-expanded="true"
          aria-controls={`${id}-list`}
          aria-activedescendant={active >= 0 ? `${id}-${active}` : undefined}
          aria-autocomplete="list"
          placeholder={PALETTE_TEXT.hint}
          value={wanted}
          onChange={({ target }) => {
            setWanted(target.value);
            setChosen(0);
          }}
          onKeyDown={onKeyDown}
          autoComplete="off"
          spellCheck={false}
        />
      </div>
      <div
        ref={list}
        id={`${id}-list`}
        role="listbox"
        aria-label={PALETTE_TEXT.results}
        className="palette-list"
      >
        {found.map((command, index) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the input handles the keys
          <div
            key={command.id}
            id={`${id}-${index}`}
            role="option"
            aria-selected={index === active}
            onClick={() => run(command)}
            onPointerMove={() => index !== active && setChosen(index)}
          >
            <Icon name={command.icon} />
            <span className="grow truncate">{command.label}</span>
            <span className="quiet small">{command.group}</span>
          </div>
        ))}
      </div>
      {found.length === 0 && <p className="nothing">{PALETTE_TEXT.nothing}</p>}
    </dialog>
  );
}
