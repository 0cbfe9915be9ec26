import { useMutation } from '@tanstack/react-query';
import { type ReactNode, useEffect, useId, useRef, useState } from 'react';
import type { Job } from '../data/resources.ts';
import { Button } from './button.tsx';
import { type Command, CommandLine } from './copy.tsx';
import { ErrorNote } from './feedback.tsx';
import { Field } from './field.tsx';
import { JobSteps } from './job-steps.tsx';

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ReactNode;
  /** Buttons at the bottom. */
  footer?: ReactNode;
  large?: boolean;
  /** Makes the content a form. */
  onSubmit?: () => void;
}

/** A modal dialog of the browser, which keeps the focus inside and closes with Escape. */
export function Dialog({ title, onClose, children, footer, large, onSubmit }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const opener = document.activeElement;
    ref.current?.showModal();
    // The browser would focus the first control, whatever it does.
    ref.current?.querySelector<HTMLElement>('[data-first-focus]')?.focus();
    return () => {
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
    };
  }, []);
  const content = (
    <>
      <div className="body">{children}</div>
      {footer && <footer>{footer}</footer>}
    </>
  );
  return (
    <dialog
      ref={ref}
      className={large ? 'dialog large' : 'dialog'}
      aria-labelledby={titleId}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <header>
        <h2 id={titleId}>{title}</h2>
      </header>
      {onSubmit ? (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            onSubmit();
          }}
        >
          {content}
        </form>
      ) : (
        content
      )}
    </dialog>
  );
}

interface TypedNameProps {
  name: string;
  value: string;
  onChange: (value: string) => void;
  isFirstFocus?: boolean;
}

/** The name of what an action affects; the action is disabled until a person has typed it. */
export const TypedName = ({ name, value, onChange, isFirstFocus = false }: TypedNameProps) => (
  <Field
    label={`Type ${name} to confirm`}
    className="mono"
    value={value}
    onChange={({ target }) => onChange(target.value)}
    autoComplete="off"
    spellCheck={false}
    {...(isFirstFocus && { 'data-first-focus': true })}
  />
);

interface ActionDialogProps<T> {
  title: string;
  /** What its button says. */
  action: string;
  /** Something is lost by it. */
  isDangerous?: boolean;
  /** Reports the job that it has become, if it takes long. */
  run: (onProgress: (job: Job) => void) => Promise<T>;
  /** The dialog is closed then. */
  onDone: (result: T) => void;
  onClose: () => void;
  /** Names that have to be typed first. */
  typed?: readonly string[];
  isReady?: boolean;
  /** The content has a control that a person uses first. */
  isForm?: boolean;
  command?: Command;
  children?: ReactNode;
}

/** A dialog that does one thing, and stays with the error if that fails. */
export function ActionDialog<T>({
  title,
  action,
  isDangerous = false,
  run,
  onDone,
  onClose,
  typed = [],
  isReady = true,
  isForm = false,
  command,
  children,
}: ActionDialogProps<T>) {
  const [names, setNames] = useState<Readonly<Record<string, string>>>({});
  const [job, setJob] = useState<Job | null>(null);
  const attempt = useMutation({
    mutationFn: () => {
      setJob(null);
      return run(setJob);
    },
    onSuccess: (result) => {
      onDone(result);
      onClose();
    },
  });
  const isUntyped = typed.length === 0 && !isForm;
  const isAllowed = isReady && typed.every((name) => names[name] === name);
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={() => isAllowed && !attempt.isPending && attempt.mutate()}
      footer={
        <>
          <Button onClick={onClose} {...(isDangerous && isUntyped && { 'data-first-focus': true })}>
            Cancel
          </Button>
          <Button
            type="submit"
            look={isDangerous ? 'danger primary' : 'primary'}
            disabled={!isAllowed}
            busy={attempt.isPending}
            {...(!isDangerous && isUntyped && { 'data-first-focus': true })}
          >
            {action}
          </Button>
        </>
      }
    >
      {children}
      {typed.map((name, index) => (
        <TypedName
          key={name}
          name={name}
          value={names[name] ?? ''}
          onChange={(value) => setNames({ ...names, [name]: value })}
          isFirstFocus={index === 0 && !isForm}
        />
      ))}
      {job !== null && <JobSteps job={job} />}
      {attempt.isError && <ErrorNote error={attempt.error} />}
      {command !== undefined && <CommandLine command={command} />}
    </Dialog>
  );
}
