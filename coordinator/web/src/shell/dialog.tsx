// A modal dialog: the browser's own, which keeps the focus inside and closes with Escape.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { Icon } from './icon';

interface Props {
  title: string;
  open: boolean;
  onClose: () => void;
  side?: boolean; // a drawer at the left edge
  children: ComponentChildren;
}

export function Dialog({ title, open, onClose, side, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current!;
    if (open && !element.open) element.showModal();
    if (!open && element.open) element.close();
  }, [open]);
  const onClick = (event: MouseEvent) => {
    if (event.target === dialog.current) onClose(); // the backdrop
  };
  return (
    <dialog ref={dialog} class={side ? 'drawer' : undefined} aria-label={title} onClose={onClose} onClick={onClick}>
      {open && (
        <div class="dialog-body">
          <div class="dialog-head">
            <h2>{title}</h2>
            <button type="button" class="quiet" onClick={onClose} aria-label="Close">
              <Icon name="close" />
            </button>
          </div>
          {children}
        </div>
      )}
    </dialog>
  );
}
